// Dialogs of facts: a new one, a correction, and how one is forgotten.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Fact, MemoryScope } from "../../gen/mnemesh/recall/v1/episodes_pb";
import { episodes, newRequestId } from "../api";
import { Dialog, Field, ProblemBox, useAction } from "../parts";

interface DoneProps {
  onClose: () => void;
  onDone: () => Promise<void>;
}

interface FactFormProps extends DoneProps {
  title: string;
  submit: string;
  isReady: boolean;
  send: (requestId: string) => Promise<unknown>;
  children: ComponentChildren;
}

function FactForm({ title, submit, isReady, send, onClose, onDone, children }: FactFormProps) {
  const [requestId] = useState(newRequestId);
  const action = useAction();
  const onSubmit = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      await send(requestId);
      await onDone();
    });
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={onSubmit}>
        {children}
        <ProblemBox problem={action.problem} />
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={action.busy || !isReady}>
            {submit}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface TextFieldProps {
  label: string;
  hint?: string;
  value: string;
  autoFocus?: boolean;
  onChange: (value: string) => void;
}

function TextField({ label, hint, value, autoFocus, onChange }: TextFieldProps) {
  return (
    <Field label={label} hint={hint}>
      {(id) => (
        <textarea
          id={id}
          rows={2}
          autoFocus={autoFocus}
          value={value}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function AddFact({ scope, ...done }: DoneProps & { scope: MemoryScope["scope"] }) {
  const [text, setText] = useState("");
  const send = (requestId: string) => episodes.createFact({ requestId, fact: { scope: { scope }, text: text.trim() } });
  return (
    <FactForm title="Add a fact" submit="Add fact" isReady={text.trim() !== ""} send={send} {...done}>
      <TextField label="Fact" hint="One statement, such as “Ada drinks tea.”" value={text} autoFocus onChange={setText} />
    </FactForm>
  );
}

/** Replaces a fact by another one. The old one stays in the history. */
export function CorrectFact({ fact, ...done }: DoneProps & { fact: Fact }) {
  const [text, setText] = useState(fact.text);
  const [reason, setReason] = useState("");
  const send = (requestId: string) =>
    episodes.supersedeFact({
      requestId,
      operation: { factId: fact.id, fact: { text: text.trim() }, reason: reason.trim() || undefined },
    });
  const isReady = text.trim() !== "" && text.trim() !== fact.text;
  return (
    <FactForm title="Correct the fact" submit="Correct" isReady={isReady} send={send} {...done}>
      <p class="hint">From now on, the new statement holds. The old one stays in the history.</p>
      <TextField label="What is true" value={text} autoFocus onChange={setText} />
      <TextField label="Why" hint="May be empty." value={reason} onChange={setReason} />
    </FactForm>
  );
}

export function RestoreFact({ fact, ...done }: DoneProps & { fact: Fact }) {
  const [reason, setReason] = useState("");
  const send = (requestId: string) =>
    episodes.restoreFact({ requestId, factId: fact.id, reason: reason.trim() || undefined });
  return (
    <FactForm title="Restore the fact" submit="Restore" isReady send={send} {...done}>
      <p>“{fact.text}” holds again. If another fact took its place, that one is superseded.</p>
      <TextField label="Why" hint="May be empty." value={reason} autoFocus onChange={setReason} />
    </FactForm>
  );
}

/** Withdraws a fact, which the history keeps, or erases it. */
export function ForgetFact({ fact, onClose, onDone }: DoneProps & { fact: Fact }) {
  const [requestId] = useState(newRequestId);
  const [reason, setReason] = useState("");
  const action = useAction();
  const end = (work: () => Promise<unknown>) =>
    action.run(async () => {
      await work();
      await onDone();
    });
  const withdraw = () =>
    episodes.invalidateFact({ requestId, operation: { factId: fact.id, reason: reason.trim() || undefined } });
  return (
    <Dialog title="Forget the fact?" onClose={onClose}>
      <p>“{fact.text}”</p>
      <ul class="ways">
        {!fact.closeTime && (
          <li>
            <div class="stack">
              <p>
                <strong>Withdraw</strong> says that it does not hold from now on. The history keeps it, and it can be
                restored.
              </p>
              <TextField label="Why" hint="May be empty." value={reason} autoFocus onChange={setReason} />
            </div>
            <button type="button" disabled={action.busy} onClick={() => void end(withdraw)}>
              Withdraw
            </button>
          </li>
        )}
        <li>
          <p>
            <strong>Erase</strong> removes it from the history too. This cannot be undone. The messages that it was
            learned from stay.
          </p>
          <button
            type="button"
            class="primary danger"
            disabled={action.busy}
            onClick={() => void end(() => episodes.deleteFact({ requestId, factId: fact.id }))}
          >
            Erase
          </button>
        </li>
      </ul>
      <ProblemBox problem={action.problem} />
    </Dialog>
  );
}
