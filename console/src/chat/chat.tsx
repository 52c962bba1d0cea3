// The panel Chat: a conversation with its running turn.

import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { clock, exact, indented } from "../format";
import { Busy, Empty, ProblemBox, useAction } from "../parts";
import { linkTo } from "../route";
import { ConversationState, type Decisions, type Image } from "./conversation";
import type { Asked, Called, Entry, Result, Said } from "./entries";

const NEAR_END = 80;
const SPEAKERS: Record<Said["kind"], string> = {
  user: "You",
  assistant: "Agent",
  reasoning: "Reasoning",
  summary: "Summary of older messages",
  note: "Note",
};

export function Chat({ agent, conversationId }: { agent: Agent; conversationId: string }) {
  const state = useMemo(() => new ConversationState(agent.id, conversationId), [agent.id, conversationId]);
  useEffect(() => {
    void state.open();
    return () => state.close();
  }, [state]);
  const entries = state.entries.value;
  const waiting = entries.some((entry) => entry.kind === "approval" && !entry.decisions);
  return (
    <div class="chat">
      <Timeline state={state} entries={entries} />
      <div class="chat-foot">
        <ProblemBox problem={state.problem.value} retry={state.isLoaded.value ? undefined : () => state.open()} />
        {state.isLost.value && <Busy what="The connection is lost. The run continues; connecting again" />}
        <Composer state={state} isWaiting={waiting} name={agent.name} />
      </div>
    </div>
  );
}

/** The messages. Old ones are added at the top without moving what is read; new ones keep the end in view. */
function Timeline({ state, entries }: { state: ConversationState; entries: Entry[] }) {
  const box = useRef<HTMLDivElement>(null);
  const fromEnd = useRef(0);
  const older = useAction();
  const drawn = useMemo(() => new WeakMap<Entry, VNode>(), [state]);
  const draw = (entry: Entry) => {
    const known = drawn.get(entry) ?? <EntryView key={entry.key} entry={entry} state={state} />;
    drawn.set(entry, known);
    return known;
  };
  const inner = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    // The height also changes after a draw: entries out of sight have an estimated one.
    const observer = new ResizeObserver(() => {
      if (fromEnd.current < NEAR_END) {
        box.current!.scrollTop = box.current!.scrollHeight;
      }
    });
    observer.observe(inner.current!);
    return () => observer.disconnect();
  }, []);
  const loadOlder = () => {
    const { current } = box;
    const below = current ? current.scrollHeight - current.scrollTop : 0;
    void older
      .run(() => state.loadOlder())
      .then(() => requestAnimationFrame(() => current && (current.scrollTop = current.scrollHeight - below)));
  };
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current!;
    fromEnd.current = scrollHeight - scrollTop - clientHeight;
  };
  return (
    <div class="timeline" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label="Messages">
      <div class="timeline-inner" ref={inner}>
        {state.hasOlder.value && (
          <button type="button" disabled={older.busy} onClick={loadOlder}>
            Earlier messages
          </button>
        )}
        <ProblemBox problem={older.problem} />
        {!state.isLoaded.value && !state.problem.value && <Busy what="Loading messages" />}
        {state.isLoaded.value && entries.length === 0 && state.running.value === undefined && (
          <Empty title="This conversation has no messages yet.">
            <p>
              Write one below. A rehearsal understands, for example: “My name is Ada. Remember that the launch is on
              Friday.”
            </p>
          </Empty>
        )}
        {entries.map(draw)}
        {state.running.value !== undefined && <Busy what="The agent is working" />}
      </div>
    </div>
  );
}

function EntryView({ entry, state }: { entry: Entry; state: ConversationState }) {
  switch (entry.kind) {
    case "call":
      return <CallView call={entry} />;
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

function SaidView({ said, state }: { said: Said; state: ConversationState }) {
  const speaker = said.name && said.kind === "user" ? said.name : SPEAKERS[said.kind];
  if (said.kind === "reasoning" || said.kind === "summary") {
    return (
      <details class={`entry folded ${said.live ? "is-live" : ""}`}>
        <summary>{speaker}</summary>
        <p class="text">{said.text}</p>
      </details>
    );
  }
  if (said.kind === "note") {
    return (
      <details class="entry note">
        <summary>{firstLine(said.text)}</summary>
        <p class="text">{said.text}</p>
      </details>
    );
  }
  return (
    <article class={`entry said ${said.kind} ${said.live ? "is-live" : ""}`} aria-label={speaker}>
      <header>
        <strong>{speaker}</strong>
        {said.time && (
          <time class="muted" title={exact(said.time)}>
            {clock(said.time)}
          </time>
        )}
        {said.messageId && !said.live && <Fork said={said} state={state} />}
      </header>
      <p class="text">{said.text}</p>
      <Images sources={said.images} />
    </article>
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

function CallView({ call }: { call: Called }) {
  const state = call.result ? (call.result.ok ? "done" : "failed") : call.progress || "running";
  return (
    <details class={`entry call ${call.result && !call.result.ok ? "is-bad" : ""} ${call.live ? "is-live" : ""}`}>
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

/** Calls that wait for a person. Each has its own decision; one call is decided by one click. */
function ApprovalView({ asked, state }: { asked: Asked; state: ConversationState }) {
  const [decisions, setDecisions] = useState<Decisions>({});
  const [reason, setReason] = useState("");
  const isBusy = state.running.value !== undefined && !asked.agentId;
  const decide = (id: string, approve: boolean) => {
    const next = { ...decisions, [id]: { approve, reason } };
    setDecisions(next);
    if (asked.calls.every((call) => next[call.id])) {
      void state.answer(asked, next);
    }
  };
  if (asked.decisions) {
    const verdicts = asked.calls.map((call) => `${call.name} ${asked.decisions?.[call.id] ?? "answered"}`);
    return <p class="entry note">{verdicts.join(", ")}</p>;
  }
  return (
    <section class="entry approval" aria-label="Approval">
      <h3>The agent asks for your approval</h3>
      {asked.calls.map((call) => (
        <div key={call.id} class="approval-call">
          <span class="tool">{call.name}</span>
          <pre class="code">{indented(call.arguments)}</pre>
          <div class="buttons">
            <button
              type="button"
              class="primary"
              disabled={isBusy || !!decisions[call.id]}
              onClick={() => decide(call.id, true)}
            >
              Approve
            </button>
            <button type="button" disabled={isBusy || !!decisions[call.id]} onClick={() => decide(call.id, false)}>
              Deny
            </button>
            {decisions[call.id] && <span class="tag">{decisions[call.id]!.approve ? "approve" : "deny"}</span>}
          </div>
        </div>
      ))}
      <input
        aria-label="Reason for a denial"
        placeholder="Reason for a denial (the agent reads it)"
        value={reason}
        onInput={(event) => setReason(event.currentTarget.value)}
      />
    </section>
  );
}

const IMAGE_TYPES = "image/png,image/jpeg,image/gif,image/webp";

async function readImage(file: File): Promise<Image> {
  return { name: file.name, mediaType: file.type, data: new Uint8Array(await file.arrayBuffer()) };
}

interface ComposerProps {
  state: ConversationState;
  isWaiting: boolean;
  name: string;
}

function Composer({ state, isWaiting, name }: ComposerProps) {
  const [text, setText] = useState("");
  const [images, setImages] = useState<Image[]>([]);
  const cancelling = useAction();
  const running = state.running.value;
  const isEmpty = !text.trim() && images.length === 0;
  const isBlocked = running !== undefined || isWaiting || isEmpty || !state.isLoaded.value;
  const send = () => {
    if (!isBlocked) {
      setText("");
      setImages([]);
      void state.send(text.trim(), images);
    }
  };
  const attach = async (input: HTMLInputElement) => {
    const added = await Promise.all(Array.from(input.files ?? [], readImage));
    setImages([...images, ...added]);
    input.value = "";
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), send())}>
      <textarea
        aria-label={`Message to ${name}`}
        placeholder={isWaiting ? "Answer the approval first" : `Message to ${name}`}
        rows={2}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      {images.length > 0 && (
        <ul class="attached" aria-label="Images of the message">
          {images.map((image, index) => (
            <li key={index} class="tag">
              {image.name}
              <button
                type="button"
                class="quiet"
                aria-label={`Remove ${image.name}`}
                onClick={() => setImages(images.filter((_, at) => at !== index))}
              >
                ✕
              </button>
            </li>
          ))}
        </ul>
      )}
      <div class="composer-foot">
        <label class="attach">
          Add images
          <input type="file" accept={IMAGE_TYPES} multiple onChange={(event) => void attach(event.currentTarget)} />
        </label>
        <span class="muted">{state.usage.value || "Enter sends, Shift+Enter starts a new line"}</span>
        {running === undefined ? (
          <button type="submit" class="primary" disabled={isBlocked}>
            Send
          </button>
        ) : (
          <button
            type="button"
            disabled={!running || cancelling.busy}
            onClick={() => void cancelling.run(() => state.cancel())}
          >
            Cancel the run
          </button>
        )}
      </div>
      <ProblemBox problem={cancelling.problem} />
    </form>
  );
}
