// Dialogs: a modal one, and one with a form that sends a request.

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { newRequestId } from "./api";
import { ProblemBox, useAction } from "./parts";

interface DialogProps {
  title: string;
  /** Absent: it stays until what it asks for is there. */
  onClose?: () => void;
  children: ComponentChildren;
}

/** A modal dialog: the browser keeps the focus inside, Escape closes it, and the focus returns to what opened it. */
export function Dialog({ title, onClose, children }: DialogProps) {
  // A chooser of files that is left tells it with an event of the same name, which bubbles.
  const cancel = (event: Event) => {
    if (event.target === event.currentTarget) {
      event.preventDefault();
      onClose?.();
    }
  };
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
        {onClose && (
          <button type="button" class="quiet" aria-label="Close" onClick={onClose}>
            ✕
          </button>
        )}
      </header>
      {children}
    </dialog>
  );
}

interface FormDialogProps {
  title: string;
  /** The words of the button that sends. */
  submit: string;
  isReady?: boolean;
  /** What it does cannot be undone: the button that leaves everything as it is has the focus. */
  isDanger?: boolean;
  /** Further buttons of the foot. */
  buttons?: ComponentChildren;
  /** Sends the request. A repetition after an error has the same id. */
  send: (requestId: string) => Promise<unknown>;
  onClose: () => void;
  children: ComponentChildren;
}

/** A form that is sent as one request. It closes when the request has succeeded, and else says what went wrong. */
export function FormDialog({ title, submit, isReady = true, isDanger, buttons, send, onClose, children }: FormDialogProps) {
  const [requestId] = useState(newRequestId);
  const action = useAction();
  const onSubmit = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      await send(requestId);
      onClose();
    });
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={onSubmit}>
        {children}
        <ProblemBox problem={action.problem} />
        <footer class="dialog-foot">
          {buttons}
          <button type="button" autoFocus={isDanger} onClick={onClose}>
            {isDanger ? "Keep it" : "Cancel"}
          </button>
          <button type="submit" class={isDanger ? "primary danger" : "primary"} disabled={action.busy || !isReady}>
            {submit}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
