// The entries of a conversation: what was said, tool calls with their results, failures.

import { clock, exact, indented } from "../format";
import { Markdown } from "../markdown";
import { ProblemBox } from "../parts";
import { linkTo } from "../route";
import { ApprovalView } from "./approval";
import type { ConversationState } from "./conversation";
import type { Called, Entry, Result, Said } from "./entries";

const SPEAKERS: Record<Said["kind"], string> = {
  user: "You",
  assistant: "Agent",
  reasoning: "Reasoning",
  summary: "Summary of older messages",
  note: "Note",
};

export function EntryView({ entry, state }: { entry: Entry; state: ConversationState }) {
  switch (entry.kind) {
    case "call":
      return <CallView call={entry} state={state} />;
    case "approval":
      return <ApprovalView asked={entry} state={state} />;
    case "failure":
      return (
        <div class="entry">
          <ProblemBox problem={entry.problem} retry={() => state.retry(entry.runId)} />
        </div>
      );
    default:
      return <SaidView said={entry} state={state} />;
  }
}

/** Returns what the element of an entry has. The target is the message that the address names, and takes the focus. */
function entryProps(entry: Said | Called, targetId: string, kind: string): { class: string; tabIndex?: number } {
  const ids = [entry.messageId, entry.kind === "call" ? entry.resultId : undefined];
  const isTarget = targetId !== "" && ids.includes(targetId);
  const names = ["entry", kind, entry.live && "is-live", isTarget && "is-target"].filter(Boolean).join(" ");
  return { class: names, tabIndex: isTarget ? -1 : undefined };
}

function SaidView({ said, state }: { said: Said; state: ConversationState }) {
  const speaker = said.name && said.kind === "user" ? said.name : SPEAKERS[said.kind];
  if (said.kind === "reasoning" || said.kind === "summary") {
    return (
      <details {...entryProps(said, state.targetId, "folded")}>
        <summary>{speaker}</summary>
        <p class="text">{said.text}</p>
      </details>
    );
  }
  if (said.kind === "note") {
    return (
      <details {...entryProps(said, state.targetId, "note")}>
        <summary>{firstLine(said.text)}</summary>
        <p class="text">{said.text}</p>
      </details>
    );
  }
  return (
    <article {...entryProps(said, state.targetId, `said ${said.kind}`)} aria-label={speaker}>
      <header>
        <strong>{speaker}</strong>
        {said.time && (
          <time class="muted" title={exact(said.time)}>
            {clock(said.time)}
          </time>
        )}
        {said.messageId && !said.live && <Fork said={said} state={state} />}
      </header>
      {said.kind === "assistant" ? <Markdown text={said.text} /> : <p class="text">{said.text}</p>}
      <Images sources={said.images} />
      {said.sending && <Sending isWaiting={said.sending === "again"} state={state} />}
    </article>
  );
}

/** What can be done with a message that the mesh has not taken yet. */
function Sending({ isWaiting, state }: { isWaiting: boolean; state: ConversationState }) {
  if (!isWaiting) {
    return <p class="hint">Sending…</p>;
  }
  return (
    <div class="buttons unsent" role="status">
      <span class="tag warn">not sent yet</span>
      <span class="hint">The mesh does not answer. It is tried again.</span>
      <button type="button" onClick={() => state.tryNow()}>
        Try now
      </button>
      <button
        type="button"
        class="quiet"
        title="If the mesh has received the message without an answer, it appears after a reload."
        onClick={() => state.discard()}
      >
        Discard
      </button>
    </div>
  );
}

/** Continues from a message in a conversation of its own; this one stays as it is. */
function Fork({ said, state }: { said: Said; state: ConversationState }) {
  const fork = async () => {
    const id = await state.fork(said.messageId);
    if (id) {
      location.hash = linkTo(state.agentId, "chat", id);
    }
  };
  return (
    <button type="button" class="quiet fork" title="Continue from here in a new conversation" onClick={() => void fork()}>
      Fork
    </button>
  );
}

/** Returns the first line of a note, shortened. Notes of the system are JSON with a message. */
function firstLine(text: string): string {
  let shown = text;
  try {
    const { message, type } = JSON.parse(text) as { message?: string; type?: string };
    shown = message ?? type ?? text;
  } catch {
    // The text is not JSON: it is shown as it is.
  }
  const line = shown.trim().split("\n", 1)[0] ?? "";
  return line.length > 140 ? `${line.slice(0, 140)}…` : line;
}

function Images({ sources }: { sources: string[] }) {
  return (
    <>
      {sources.map((source, index) => (
        <img key={index} src={source} alt={`Image ${index + 1} of the message`} loading="lazy" />
      ))}
    </>
  );
}

function CallView({ call, state: { targetId } }: { call: Called; state: ConversationState }) {
  const state = call.result ? (call.result.ok ? "done" : "failed") : call.progress || "running";
  return (
    <details {...entryProps(call, targetId, call.result && !call.result.ok ? "call is-bad" : "call")}>
      <summary>
        <span class="tool">{call.name}</span>
        <span class="preview">{call.input}</span>
        <span class="tag">{state}</span>
      </summary>
      {call.input && (
        <>
          <h3>Arguments</h3>
          <pre class="code">{indented(call.input)}</pre>
        </>
      )}
      {call.result && <ResultView result={call.result} />}
    </details>
  );
}

function ResultView({ result }: { result: Result }) {
  const parts: [string, string][] = [
    [result.ok ? "Result" : "Error", result.text],
    ["Standard output", result.stdout],
    ["Standard error", result.stderr],
  ];
  return (
    <>
      {parts.map(([title, text]) =>
        text ? (
          <div key={title}>
            <h3>{title}</h3>
            <pre class="code">{indented(text)}</pre>
          </div>
        ) : null,
      )}
      {!parts.some(([, text]) => text) && result.images.length === 0 && <p class="muted">The tool returned nothing.</p>}
      <Images sources={result.images} />
    </>
  );
}
