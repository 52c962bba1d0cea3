// The panel Chat: a conversation with its running turn.

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Agent } from "../../gen/mnemesh/agents/v1/agents_pb";
import { Busy, ProblemBox, useAction, useRecovery } from "../parts";
import { linkTo, route } from "../route";
import { ConversationState, drafts, type Image } from "./conversation";
import { Timeline } from "./timeline";

export function Chat({ agent, conversationId }: { agent: Agent; conversationId: string }) {
  const { messageId } = route.value;
  const [times, setTimes] = useState(0);
  const state = useMemo(
    () => new ConversationState(agent.id, conversationId, messageId),
    [agent.id, conversationId, messageId, times],
  );
  useEffect(() => {
    void state.open();
    return () => state.close();
  }, [state]);
  useReturn(() => void state.isOutdated().then((isOutdated) => isOutdated && setTimes(times + 1), () => undefined), [state]);
  useRecovery(state.isLoaded.value ? undefined : state.problem.value, () => state.open());
  const [sent, setSent] = useState(0);
  const entries = state.entries.value;
  const asked = entries.find((entry) => entry.kind === "approval" && !entry.decisions);
  return (
    <div class="chat">
      <Timeline key={`${messageId}/${times}`} state={state} entries={entries} sent={sent} />
      {asked?.kind === "approval" && (
        <p class="unseen" role="alert">
          The agent waits for you: {asked.calls.map(({ name }) => name).join(", ")}
        </p>
      )}
      <div class="chat-foot">
        <ProblemBox problem={state.problem.value} retry={state.isLoaded.value ? undefined : () => state.open()} />
        {state.isLost.value && <Busy what="The connection is lost. The run continues; connecting again" />}
        {state.hasNewer.value ? (
          <p class="earlier">
            This is an earlier part of the conversation. <a href={linkTo(agent.id, "chat", conversationId)}>Newest messages</a>
          </p>
        ) : (
          <Composer
            key={conversationId}
            state={state}
            isWaiting={asked !== undefined}
            name={agent.name}
            toEnd={() => setSent(sent + 1)}
          />
        )}
      </div>
    </div>
  );
}

/** Calls a function when a person comes back to the page from another tab or window. */
function useReturn(call: () => void, inputs: unknown[]): void {
  useEffect(() => {
    const returned = () => document.hidden || call();
    addEventListener("focus", returned);
    document.addEventListener("visibilitychange", returned);
    return () => {
      removeEventListener("focus", returned);
      document.removeEventListener("visibilitychange", returned);
    };
  }, inputs);
}

const IMAGE_TYPES = "image/png,image/jpeg,image/gif,image/webp";

async function readImage(file: File): Promise<Image> {
  return { name: file.name, mediaType: file.type, data: new Uint8Array(await file.arrayBuffer()) };
}

interface ComposerProps {
  state: ConversationState;
  isWaiting: boolean;
  name: string;
  /** Shows the end of the conversation. */
  toEnd: () => void;
}

function Composer({ state, isWaiting, name, toEnd }: ComposerProps) {
  const [text, setText] = useState(() => drafts.get(state.conversationId)?.text ?? "");
  const [images, setImages] = useState<Image[]>(() => drafts.get(state.conversationId)?.images ?? []);
  useEffect(() => void drafts.set(state.conversationId, { text, images }), [text, images]);
  const cancelling = useAction();
  const undoing = useAction();
  const running = state.running.value;
  const isEmpty = !text.trim() && images.length === 0;
  const isBlocked = running !== undefined || isWaiting || isEmpty;
  const send = () => {
    if (!isBlocked) {
      setText("");
      setImages([]);
      toEnd();
      void state.send(text.trim(), images).then((arrived) => !arrived && restore());
    }
  };
  /** Brings back what was refused, also if the panel is closed: the login takes its place if the token has expired. */
  const restore = () => {
    drafts.set(state.conversationId, { text, images });
    setText(text);
    setImages(images);
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
  const toApproval = () => {
    toEnd();
    requestAnimationFrame(() => document.querySelector<HTMLElement>(".approval")?.focus());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      (isWaiting ? toApproval : send)();
    }
  };
  return (
    <form class="composer" onSubmit={(event) => (event.preventDefault(), send())}>
      <textarea
        aria-label={`Message to ${name}`}
        placeholder={isWaiting ? "Answer the approval first: Enter leads to it" : `Message to ${name.length > 40 ? `${name.slice(0, 40)}…` : name}`}
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
        {isWaiting && (
          <button type="button" class="primary" onClick={toApproval}>
            Go to the approval
          </button>
        )}
        {running !== undefined && (
          <button
            type="button"
            disabled={!running || cancelling.busy}
            onClick={() => void cancelling.run(() => state.cancel())}
          >
            Cancel the run
          </button>
        )}
        {running === undefined && !isWaiting && (
          <button type="submit" class="primary" disabled={isBlocked}>
            Send
          </button>
        )}
      </div>
      <ProblemBox problem={cancelling.problem} />
    </form>
  );
}
