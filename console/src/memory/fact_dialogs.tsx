// Dialogs of facts: a new one, a correction, and how one is forgotten.

import { useState } from "preact/hooks";
import type { Fact, MemoryScope } from "../../gen/mnemesh/recall/v1/episodes_pb";
import { newRequestId } from "../api";
import { episodes } from "../clients/memory";
import { Dialog, FormDialog } from "../dialog";
import { ProblemBox, TextField, useAction } from "../parts";

interface DoneProps {
  onClose: () => void;
  onDone: () => Promise<void>;
}

export function AddFact({ scope, onClose, onDone }: DoneProps & { scope: MemoryScope["scope"] }) {
  const [text, setText] = useState("");
  const send = async (requestId: string) => {
    await episodes.createFact({ requestId, fact: { scope: { scope }, text: text.trim() } });
    await onDone();
  };
  return (
    <FormDialog title="Add a fact" submit="Add fact" isReady={text.trim() !== ""} send={send} onClose={onClose}>
      <TextField label="Fact" hint="One statement, such as “Ada drinks tea.”" rows={2} value={text} autoFocus onChange={setText} />
    </FormDialog>
  );
}

/** Replaces a fact by another one. The old one stays in the history. */
export function CorrectFact({ fact, onClose, onDone }: DoneProps & { fact: Fact }) {
  const [text, setText] = useState(fact.text);
  const [reason, setReason] = useState("");
  const send = async (requestId: string) => {
    const operation = { factId: fact.id, fact: { text: text.trim() }, reason: reason.trim() || undefined };
    await episodes.supersedeFact({ requestId, operation });
    await onDone();
  };
  const isReady = text.trim() !== "" && text.trim() !== fact.text;
  return (
    <FormDialog title="Correct the fact" submit="Correct" isReady={isReady} send={send} onClose={onClose}>
      <p class="hint">From now on, the new statement holds. The old one stays in the history.</p>
      <TextField rows={2} label="What is true" value={text} autoFocus onChange={setText} />
      <TextField rows={2} label="Why" hint="May be empty." value={reason} onChange={setReason} />
    </FormDialog>
  );
}

export function RestoreFact({ fact, onClose, onDone }: DoneProps & { fact: Fact }) {
  const [reason, setReason] = useState("");
  const send = async (requestId: string) => {
    await episodes.restoreFact({ requestId, factId: fact.id, reason: reason.trim() || undefined });
    await onDone();
  };
  return (
    <FormDialog title="Restore the fact" submit="Restore" isReady send={send} onClose={onClose}>
      <p>“{fact.text}” holds again. If another fact took its place, that one is superseded.</p>
      <TextField rows={2} label="Why" hint="May be empty." value={reason} autoFocus onChange={setReason} />
    </FormDialog>
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
      onClose();
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
              <TextField rows={2} label="Why" hint="May be empty." value={reason} autoFocus onChange={setReason} />
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
