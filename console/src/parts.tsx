// Parts that several panels share.

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { problemOf, type Problem } from "./api";
import { ago, exact, indented } from "./format";
import { linkToSection, type Section } from "./route";

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
  useRecovery(state.problem, reload);
  return { value: state.value, problem: state.problem, reload };
}

const RECOVERY_MS = 3_000;

/** Tries again what failed because the mesh does not answer. */
export function useRecovery(problem: Problem | undefined, again: () => unknown): void {
  useEffect(() => {
    const timer = problem?.reason === "UNAVAILABLE" ? setTimeout(() => void again(), RECOVERY_MS) : undefined;
    return () => clearTimeout(timer);
  }, [problem]);
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

interface ProblemProps {
  problem: Problem | undefined;
  retry?: () => unknown;
  /** The list that has what the address does not name. */
  list?: Section;
}

export function ProblemBox({ problem, retry, list }: ProblemProps) {
  if (!problem) {
    return null;
  }
  const isMissing = list !== undefined && ["NOT_FOUND", "INVALID_ARGUMENT"].includes(problem.reason);
  return (
    <div class="problem" role="alert">
      <p>
        {problem.reason && <code>{problem.reason}</code>} {problem.message}
      </p>
      {problem.next && <p class="muted">{problem.next}</p>}
      {isMissing && (
        <a class="button" href={linkToSection(list)}>
          Show all {list}
        </a>
      )}
      {retry && !isMissing && (
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
  const shown = indented(text);
  return (
    <div class="copied">
      <Copy text={shown} />
      <pre class="code" tabIndex={0} aria-label={label}>
        {shown}
      </pre>
    </div>
  );
}

/** Copies a text. Browsers allow that on this machine and over HTTPS. */
function Copy({ text }: { text: string }) {
  const [isDone, setDone] = useState(false);
  return navigator.clipboard ? (
    <button
      type="button"
      class="quiet copy"
      onBlur={() => setDone(false)}
      onClick={() => void navigator.clipboard.writeText(text).then(() => setDone(true))}
    >
      {isDone ? "Copied" : "Copy"}
    </button>
  ) : null;
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

interface TextFieldProps {
  label: string;
  hint?: string;
  value: string;
  onChange: (value: string) => void;
  /** Absent: one line. */
  rows?: number;
  type?: "text" | "password" | "url" | "number";
  required?: boolean;
  autoFocus?: boolean;
  placeholder?: string;
  min?: number;
}

export function TextField({ label, hint, value, onChange, rows, type = "text", ...settings }: TextFieldProps) {
  const onInput = (event: JSX.TargetedInputEvent<HTMLInputElement | HTMLTextAreaElement>) => onChange(event.currentTarget.value);
  return (
    <Field label={label} hint={hint}>
      {(id) =>
        rows ? (
          <textarea id={id} rows={rows} value={value} onInput={onInput} {...settings} />
        ) : (
          <input id={id} type={type} autocomplete="off" value={value} onInput={onInput} {...settings} />
        )
      }
    </Field>
  );
}

/** A check box with its words. */
export function Check({ checked, onChange, children }: { checked: boolean; onChange: (checked: boolean) => void; children: ComponentChildren }) {
  return (
    <label class="inline">
      <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
      {children}
    </label>
  );
}
