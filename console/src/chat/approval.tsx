// Calls that wait for a person: those that need an approval, and those of tools that run at the client.

import { useState } from "preact/hooks";
import type { ToolCall } from "../../gen/mnemesh/types/v1/message_pb";
import { indented } from "../format";
import { useLoad } from "../parts";
import type { ConversationState, Decision, Decisions } from "./conversation";
import type { Asked } from "./entries";

interface ApprovalProps {
  asked: Asked;
  state: ConversationState;
}

/** The calls of one request. Each has its own decision; when all are decided, the run goes on. */
export function ApprovalView({ asked, state }: ApprovalProps) {
  if (asked.decisions) {
    const verdicts = asked.calls.map((call) => `${call.name} ${asked.decisions?.[call.id] ?? "answered"}`);
    return <p class="entry note">{verdicts.join(", ")}</p>;
  }
  return <Waiting asked={asked} state={state} />;
}

function Waiting({ asked, state }: ApprovalProps) {
  const [decisions, setDecisions] = useState<Decisions>({});
  // The names of client tools are in the settings of the run that asks. Only a run of this agent has some.
  const clientTools = useLoad(() => state.clientTools(asked), [asked.key]);
  const isBusy = (state.running.value !== undefined && !asked.agentId) || (!clientTools.value && !clientTools.problem);
  const decide = (id: string, decision: Decision) => {
    const next = { ...decisions, [id]: decision };
    setDecisions(next);
    if (asked.calls.every((call) => next[call.id])) {
      // The buttons go, and with them the focus.
      document.querySelector<HTMLElement>(".timeline")?.focus();
      void state.answer(asked, next);
    }
  };
  const isClient = (call: ToolCall) => clientTools.value?.has(call.name) ?? false;
  return (
    <section class="entry approval" aria-label="Approval" tabIndex={-1}>
      <h3>{asked.calls.every(isClient) ? "The agent waits for a tool of yours" : "The agent asks for your approval"}</h3>
      {asked.calls.map((call) => (
        <div key={call.id} class="approval-call">
          <span class="tool">{call.name}</span>
          <pre class="code">{indented(call.arguments)}</pre>
          {decisions[call.id] ? (
            <span class="tag">{DECIDED[decisions[call.id]!.kind]}</span>
          ) : isClient(call) ? (
            <ClientCall call={call} isBusy={isBusy} decide={(decision) => decide(call.id, decision)} />
          ) : (
            <GatedCall call={call} isBusy={isBusy} decide={(decision) => decide(call.id, decision)} />
          )}
        </div>
      ))}
    </section>
  );
}

const DECIDED: Record<Decision["kind"], string> = { approve: "approve", deny: "deny", return: "answered" };

interface CallProps {
  call: ToolCall;
  isBusy: boolean;
  decide: (decision: Decision) => void;
}

function GatedCall({ call, isBusy, decide }: CallProps) {
  const [reason, setReason] = useState("");
  return (
    <div class="buttons decision">
      <button type="button" class="primary" disabled={isBusy} onClick={() => decide({ kind: "approve" })}>
        Approve
      </button>
      <button type="button" disabled={isBusy} onClick={() => decide({ kind: "deny", reason })}>
        Deny
      </button>
      <input
        aria-label={`Reason for a denial of ${call.name}`}
        placeholder="Reason for a denial (the agent reads it)"
        value={reason}
        onInput={(event) => setReason(event.currentTarget.value)}
      />
    </div>
  );
}

/** A tool that runs at the client: a person does what it asks for, and writes its result. */
function ClientCall({ call, isBusy, decide }: CallProps) {
  const [text, setText] = useState("");
  return (
    <div class="stack decision">
      <p class="hint">This tool runs at the client. Write its result; the agent goes on with it.</p>
      <textarea
        aria-label={`Result of ${call.name}`}
        rows={3}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <div class="buttons">
        <button
          type="button"
          class="primary"
          disabled={isBusy}
          onClick={() => decide({ kind: "return", call, text, ok: true })}
        >
          Return the result
        </button>
        <button type="button" disabled={isBusy} onClick={() => decide({ kind: "return", call, text, ok: false })}>
          Return an error
        </button>
        <button type="button" disabled={isBusy} onClick={() => decide({ kind: "deny", reason: text })}>
          Deny
        </button>
      </div>
    </div>
  );
}
