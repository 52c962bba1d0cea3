// The panel Chat: a conversation with its running turn.

import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { Busy, Empty, ProblemBox, useAction } from "../parts";
import { linkTo, route } from "../route";
import { ConversationState, drafts, type Image } from "./conversation";
import type { Entry } from "./entries";
import { EntryView } from "./entry";

const NEAR_END = 80;

export function Chat({ agent, conversationId }: { agent: Agent; conversationId: string }) {
  const { messageId } = route.value;
  const state = useMemo(
    () => new ConversationState(agent.id, conversationId, messageId),
    [agent.id, conversationId, messageId],
  );
  useEffect(() => {
    void state.open();
    return () => state.close();
  }, [state]);
  const entries = state.entries.value;
  const waiting = entries.some((entry) => entry.kind === "approval" && !entry.decisions);
  return (
    <div class="chat">
      <Timeline key={messageId} state={state} entries={entries} />
      <div class="chat-foot">
        <ProblemBox problem={state.problem.value} retry={state.isLoaded.value ? undefined : () => state.open()} />
        {state.isLost.value && <Busy what="The connection is lost. The run continues; connecting again" />}
        {state.hasNewer.value ? (
          <p class="earlier">
            This is an earlier part of the conversation. <a href={linkTo(agent.id, "chat", conversationId)}>Newest messages</a>
          </p>
        ) : (
          <Composer key={conversationId} state={state} isWaiting={waiting} name={agent.name} />
        )}
      </div>
    </div>
  );
}

/** The messages. Old ones are added at the top without moving what is read; new ones keep the end in view. */
function Timeline({ state, entries }: { state: ConversationState; entries: Entry[] }) {
  const box = useRef<HTMLDivElement>(null);
  // A part around a message does not follow the end.
  const fromEnd = useRef(state.targetId ? Infinity : 0);
  const older = useAction();
  const newer = useAction();
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
  const isOpen = state.isLoaded.value && entries.length > 0;
  useLayoutEffect(() => {
    if (isOpen && state.targetId) {
      const target = inner.current!.querySelector(".is-target");
      target?.closest("details")?.setAttribute("open", "");
      target?.scrollIntoView({ block: "center" });
    }
  }, [isOpen, state]);
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
        {state.hasNewer.value && (
          <button type="button" disabled={newer.busy} onClick={() => void newer.run(() => state.loadNewer())}>
            Later messages
          </button>
        )}
        <ProblemBox problem={newer.problem} />
        {state.running.value !== undefined && <Busy what="The agent is working" />}
      </div>
    </div>
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
  const [text, setText] = useState(() => drafts.get(state.conversationId)?.text ?? "");
  const [images, setImages] = useState<Image[]>(() => drafts.get(state.conversationId)?.images ?? []);
  useEffect(() => void drafts.set(state.conversationId, { text, images }), [text, images]);
  const cancelling = useAction();
  const undoing = useAction();
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
  const undo = () =>
    undoing.run(async () => {
      const id = await state.undo();
      if (id) {
        location.hash = linkTo(state.agentId, "chat", id);
      }
    });
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
        {running === undefined && state.lastAsked() && (
          <button
            type="button"
            class="quiet"
            title="Continue before your last message, in a new conversation. The memory stays as it is."
            disabled={undoing.busy}
            onClick={() => void undo()}
          >
            Undo
          </button>
        )}
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
