// Parts that several panels share.

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { problemOf, type Problem } from "./api";
import { ago, exact, indented } from "./format";

/** What a panel has loaded so far. */
export interface Loaded<T> {
  value: T | undefined;
  problem: Problem | undefined;
  reload: () => Promise<void>;
}

/** Loads a value when the panel opens, and again when a key changes. An answer that comes too late is dropped. */
export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, keys: unknown[]): Loaded<T> {
  const [state, setState] = useState<{ value?: T; problem?: Problem }>({});
  const running = useRef<AbortController>();
  const reload = async () => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    try {
      const value = await load(controller.signal);
      if (!controller.signal.aborted) {
        setState({ value });
      }
    } catch (error) {
      if (!controller.signal.aborted) {
        setState(({ value }) => ({ value, problem: problemOf(error) }));
      }
    }
  };
  useEffect(() => {
    setState({});
    void reload();
    return () => running.current?.abort();
  }, keys);
  return { value: state.value, problem: state.problem, reload };
}

/** Calls a function again and again while the panel is open and the page is visible. An interval of 0 pauses. */
export function useInterval(call: () => unknown, interval: number): void {
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => {
    if (!interval) {
      return;
    }
    const timer = setInterval(() => {
      if (!document.hidden) {
        void latest.current();
      }
    }, interval);
    return () => clearInterval(timer);
  }, [interval]);
}

/** Runs one action at a time, and keeps what went wrong. */
export function useAction(): { busy: boolean; problem?: Problem; run: (action: () => Promise<void>) => Promise<boolean> } {
  const [state, setState] = useState<{ busy: boolean; problem?: Problem }>({ busy: false });
  const run = async (action: () => Promise<void>) => {
    setState({ busy: true });
    try {
      await action();
      setState({ busy: false });
      return true;
    } catch (error) {
      setState({ busy: false, problem: problemOf(error) });
      return false;
    }
  };
  return { ...state, run };
}

export function ProblemBox({ problem, retry }: { problem: Problem | undefined; retry?: () => unknown }) {
  if (!problem) {
    return null;
  }
  return (
    <div class="problem" role="alert">
      <p>
        {problem.reason && <code>{problem.reason}</code>} {problem.message}
      </p>
      {problem.next && <p class="muted">{problem.next}</p>}
      {retry && (
        <button type="button" onClick={() => void retry()}>
          Try again
        </button>
      )}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

export function Busy({ what }: { what: string }) {
  return (
    <p class="busy" role="status">
      <span class="spinner" aria-hidden="true" /> {what}
    </p>
  );
}

export function Time({ at }: { at: Timestamp | undefined }) {
  return at ? <time title={exact(at)}>{ago(at)}</time> : <span class="muted">never</span>;
}

/** JSON, indented, in a box that scrolls. */
export function Json({ text, label }: { text: string; label: string }) {
  return (
    <pre class="code" tabIndex={0} aria-label={label}>
      {indented(text)}
    </pre>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  children: (id: string) => JSX.Element;
}

export function Field({ label, hint, children }: FieldProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id)}
      {hint && <p class="hint">{hint}</p>}
    </div>
  );
}

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

/** A modal dialog: the browser keeps the focus inside, and Escape closes it. */
export function Dialog({ title, onClose, children }: DialogProps) {
  // A chooser of files that is left tells it with an event of the same name, which bubbles.
  const cancel = (event: Event) => event.target === event.currentTarget && onClose();
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const dialog = element.current!;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return (
    <dialog ref={element} aria-labelledby={id} onCancel={cancel}>
      <header class="dialog-head">
        <h2 id={id}>{title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={onClose}>
          ✕
        </button>
      </header>
      {children}
    </dialog>
  );
}
