// The messages of a conversation. Of a long one, the document has the part around what is read: with all of ten thousand
// messages in it, each change would take seconds.

import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Busy, Empty, ProblemBox, useAction } from "../parts";
import type { ConversationState } from "./conversation";
import type { Entry } from "./entries";
import { EntryView } from "./entry";

const NEAR_END = 80;
/** How many entries are in the document, and by how many this part moves. */
const SHOWN = 240;
const STEP = 80;
/** The distance in pixels from an edge of the part at which it moves. */
const NEAR_EDGE = 1_000;

interface TimelineProps {
  state: ConversationState;
  entries: Entry[];
  /** How many messages were sent from this page. A new one leads to the end. */
  sent: number;
}

/** Old messages are added at the top without moving what is read; new ones keep the end in view. */
export function Timeline({ state, entries, sent }: TimelineProps) {
  const box = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  // A part around a message does not follow the end.
  const fromEnd = useRef(state.targetId ? Infinity : 0);
  const older = useAction();
  const newer = useAction();
  const [after, setAfter] = useState(0);
  const before = Math.max(0, entries.length - after - SHOWN);
  const shown = entries.slice(before, entries.length - after);
  const draw = useDrawn(state);
  const anchor = useAnchor(box, inner, shown[0]?.key);
  const isAtEnd = after === 0 && !state.hasNewer.value;
  const follows = useRef(isAtEnd);
  follows.current = isAtEnd;
  useLayoutEffect(() => {
    // The height also changes after a draw: entries out of sight have an estimated one.
    const observer = new ResizeObserver(() => {
      if (follows.current && fromEnd.current < NEAR_END) {
        box.current!.scrollTop = box.current!.scrollHeight;
      }
    });
    observer.observe(inner.current!);
    return () => observer.disconnect();
  }, []);
  const isOpen = state.isLoaded.value && entries.length > 0;
  useLayoutEffect(() => {
    if (isOpen && state.targetId) {
      const target = inner.current!.querySelector<HTMLElement>(".is-target");
      target?.closest("details")?.setAttribute("open", "");
      target?.scrollIntoView({ block: "center" });
      // Readers of the screen continue from there.
      target?.focus({ preventScroll: true });
    }
  }, [isOpen, state]);
  const isLeaving = useRef(false);
  useLayoutEffect(() => {
    if (sent) {
      setAfter(0);
      isLeaving.current = true;
    }
  }, [sent]);
  useLayoutEffect(() => {
    // Only after the end is drawn.
    if (isLeaving.current && after === 0) {
      isLeaving.current = false;
      fromEnd.current = 0;
      box.current!.scrollTop = box.current!.scrollHeight;
    }
  });
  const showEarlier = () => {
    if (before > 0) {
      setAfter(after + Math.min(STEP, before));
    } else if (state.hasOlder.value && !older.busy && !older.problem) {
      void older.run(() => state.loadOlder());
    }
  };
  const moveToView = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current!;
    fromEnd.current = scrollHeight - scrollTop - clientHeight;
    if (isOpen && scrollTop < NEAR_EDGE) {
      showEarlier();
    } else if (after > 0 && fromEnd.current < NEAR_EDGE) {
      setAfter(Math.max(0, after - STEP));
    }
  };
  useEffect(moveToView, [isOpen, entries.length, after, older.busy]);
  const onScroll = () => {
    anchor.remember();
    moveToView();
  };
  return (
    <div class="timeline" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label="Messages">
      <div class="timeline-inner" ref={inner}>
        {(before > 0 || state.hasOlder.value) && (
          <button
            type="button"
            disabled={older.busy}
            onClick={() => (before > 0 ? showEarlier() : void older.run(() => state.loadOlder()))}
          >
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
        {shown.map(draw)}
        {after === 0 && state.isLoaded.value && state.hasNewer.value && (
          <button type="button" disabled={newer.busy} onClick={() => void newer.run(() => state.loadNewer())}>
            Later messages
          </button>
        )}
        <ProblemBox problem={newer.problem} />
        {after === 0 && state.running.value !== undefined && <Busy what="The agent is working" />}
      </div>
    </div>
  );
}

/** Draws each entry once: an entry that has not changed is the same object. */
function useDrawn(state: ConversationState): (entry: Entry) => VNode {
  const drawn = useMemo(() => new WeakMap<Entry, VNode>(), [state]);
  return (entry) => {
    const known = drawn.get(entry) ?? <EntryView key={entry.key} entry={entry} state={state} />;
    drawn.set(entry, known);
    return known;
  };
}

type Box = { readonly current: HTMLDivElement | null };

/** Keeps the entry at the top of the view where it is, when others are added above it or removed there. */
function useAnchor(box: Box, inner: Box, firstKey: string | undefined): { remember: () => void } {
  const held = useRef<{ element: Element; top: number }>();
  const remember = () => {
    const top = box.current!.getBoundingClientRect().top;
    for (const element of inner.current!.children) {
      const bounds = element.getBoundingClientRect();
      if (bounds.bottom > top && element.tagName !== "BUTTON") {
        held.current = { element, top: bounds.top };
        return;
      }
    }
  };
  useLayoutEffect(() => {
    const { element, top } = held.current ?? {};
    if (element?.isConnected && top !== undefined) {
      box.current!.scrollTop += element.getBoundingClientRect().top - top;
    }
    remember();
  }, [firstKey]);
  return { remember };
}
