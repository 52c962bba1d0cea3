// Environment variables whose values are stored encrypted: they are set and removed, and never shown.

import { useState } from "preact/hooks";
import { FormDialog } from "./dialog";
import { Row } from "./list";
import { TextField } from "./parts";

/** The whole set after a change. A variable without a value keeps the stored one. */
export type SecretValues = { name: string; value?: string }[];

interface SecretsProps {
  names: string[];
  hint: string;
  save: (requestId: string, values: SecretValues) => Promise<unknown>;
}

type Opened = { kind: "set"; name: string } | { kind: "remove"; name: string };

export function Secrets({ names, hint, save }: SecretsProps) {
  const [opened, setOpened] = useState<Opened>();
  const close = () => setOpened(undefined);
  const kept = (name: string) => names.filter((each) => each !== name).map((each) => ({ name: each }));
  return (
    <section class="stack" aria-labelledby="secrets-title" tabIndex={-1}>
      <header class="page-head">
        <h2 id="secrets-title">Secrets</h2>
        <button type="button" onClick={() => setOpened({ kind: "set", name: "" })}>
          Set a secret
        </button>
      </header>
      <p class="hint">{hint}</p>
      {names.length === 0 && <p class="muted">There is no secret yet.</p>}
      {names.length > 0 && (
        <ul class="rows" aria-label="Secrets">
          {names.map((name) => (
            <Row
              key={name}
              name={name}
              isMono
              text="••••••••"
              end={
                <>
                  <button type="button" class="quiet" aria-label={`Replace ${name}`} onClick={() => setOpened({ kind: "set", name })}>
                    Replace
                  </button>
                  <button
                    type="button"
                    class="quiet danger"
                    aria-label={`Remove ${name}`}
                    onClick={() => setOpened({ kind: "remove", name })}
                  >
                    Remove
                  </button>
                </>
              }
            />
          ))}
        </ul>
      )}
      {opened?.kind === "set" && (
        <SetSecret
          name={opened.name}
          onClose={close}
          save={(requestId, name, value) => save(requestId, [...kept(name), { name, value }])}
        />
      )}
      {opened?.kind === "remove" && (
        <FormDialog
          title={`Remove ${opened.name}?`}
          submit="Remove secret"
          isDanger
          send={(requestId) => save(requestId, kept(opened.name))}
          onClose={close}
        >
          <p>Its value cannot be brought back. Tools that read the variable no longer find it.</p>
        </FormDialog>
      )}
    </section>
  );
}

interface SetSecretProps {
  /** Empty for a new one. */
  name: string;
  onClose: () => void;
  save: (requestId: string, name: string, value: string) => Promise<unknown>;
}

function SetSecret({ name: known, onClose, save }: SetSecretProps) {
  const [name, setName] = useState(known);
  const [value, setValue] = useState("");
  return (
    <FormDialog
      title={known ? `Replace ${known}` : "Set a secret"}
      submit="Save secret"
      isReady={name.trim() !== "" && value !== ""}
      send={(requestId) => save(requestId, name.trim(), value)}
      onClose={onClose}
    >
      {!known && (
        <TextField
          label="Name of the variable"
          hint="Letters, digits and underscores, such as “API_KEY”."
          required
          autoFocus
          value={name}
          onChange={setName}
        />
      )}
      <TextField label="Value" type="password" required autoFocus={known !== ""} value={value} onChange={setValue} />
    </FormDialog>
  );
}
