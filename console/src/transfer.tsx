// Dialogs that move agents: an export to a file, and an import with what the file has, before it is sent.

import { create, toJsonString } from "@bufbuild/protobuf";
import { useEffect, useRef, useState } from "preact/hooks";
import { RecordType } from "../gen/mnemesh/agents/v1/agent_records_pb";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import { type ImportAgentResponse, ImportOptionsSchema } from "../gen/mnemesh/agents/v1/agents_service_pb";
import { type AgentFile, download, exportLetta, exportRecords, FileProblem, importLetta, importRecords, readAgentFile } from "./agent_files";
import { newRequestId, type Problem, problemOf } from "./api";
import { Dialog } from "./dialog";
import { bytes as size, count, words } from "./format";
import { Busy, Check, Field, Json, ProblemBox, TextField } from "./parts";
import { linkTo } from "./route";

/** Runs one transfer at a time. Closing the dialog ends it. */
function useTransfer() {
  const [state, setState] = useState<{ busy: boolean; problem?: Problem }>({ busy: false });
  const running = useRef<AbortController>();
  useEffect(() => () => running.current?.abort(), []);
  const run = async (work: (signal: AbortSignal) => Promise<void>) => {
    const controller = new AbortController();
    running.current = controller;
    setState({ busy: true });
    try {
      await work(controller.signal);
      setState({ busy: false });
    } catch (error) {
      if (!controller.signal.aborted) {
        setState({ busy: false, problem: error instanceof FileProblem ? error.problem : problemOf(error) });
      }
    }
  };
  return { ...state, run };
}

export function ExportAgent({ agent, onClose }: { agent: Agent; onClose: () => void }) {
  const [format, setFormat] = useState<"mnemesh" | "letta">("mnemesh");
  const [vectors, setVectors] = useState(false);
  const [progress, setProgress] = useState("");
  const transfer = useTransfer();
  const submit = (event: Event) => {
    event.preventDefault();
    void transfer.run(async (signal) => {
      if (format === "letta") {
        download(await exportLetta(agent.id, signal), `${agent.name}.af`);
      } else {
        const onProgress = ({ records, bytes }: { records: number; bytes: number }) =>
          setProgress(`${count(records, "record")}, ${size(bytes)}`);
        download(await exportRecords(agent.id, vectors, signal, onProgress), `${agent.name}.mnemesh`);
      }
      onClose();
    });
  };
  return (
    <Dialog title={`Export ${agent.name}`} onClose={onClose}>
      <form onSubmit={submit}>
        <fieldset class="options">
          <legend>Format</legend>
          <label class="option">
            <input type="radio" name="format" checked={format === "mnemesh"} onChange={() => setFormat("mnemesh")} />
            <span>
              <strong>mnemesh</strong>
              <span class="hint">
                Everything: settings, blocks with their history, every message, facts, passages, runs. One record per line.
              </span>
            </span>
          </label>
          <label class="option">
            <input type="radio" name="format" checked={format === "letta"} onChange={() => setFormat("letta")} />
            <span>
              <strong>Letta agent file (.af)</strong>
              <span class="hint">What other servers of Letta's format read: settings, blocks, tools, messages.</span>
            </span>
          </label>
        </fieldset>
        {format === "mnemesh" && (
          <Check checked={vectors} onChange={setVectors}>
            With the vectors of passages, so that an import embeds nothing again
          </Check>
        )}
        <p class="hint">Values of secrets and contents of uploaded files are in no export.</p>
        <ProblemBox problem={transfer.problem} />
        {transfer.busy && <Busy what={`Exporting ${progress}`} />}
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={transfer.busy}>
            Export
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

interface Imported {
  agentIds: string[];
  notes: string[];
}

export function ImportAgent({ onClose, onImported }: { onClose: () => void; onImported: () => void }) {
  const [requestId, setRequestId] = useState(newRequestId);
  const [file, setFile] = useState<AgentFile>();
  const [done, setDone] = useState<Imported>();
  const [name, setName] = useState("");
  const [keepIds, setKeepIds] = useState(true);
  const [stripMessages, setStripMessages] = useState(false);
  const [sent, setSent] = useState(0);
  const transfer = useTransfer();
  const options = { requestId, keepIds, stripMessages, name: name.trim() || undefined };
  const choose = (chosen: File | undefined) => {
    setFile(undefined);
    if (chosen) {
      void transfer.run(async (signal) => setFile(await readAgentFile(chosen, signal)));
      setRequestId(newRequestId());
    }
  };
  const submit = (event: Event) => {
    event.preventDefault();
    void transfer.run(async (signal) => {
      if (file?.format === "letta") {
        const { agent_ids: agentIds, left_out: notes } = await importLetta(file, options, signal);
        setDone({ agentIds, notes });
      } else if (file) {
        const response = await importRecords(file, { options, signal, onProgress: setSent });
        setDone({ agentIds: [response.agent!.id], notes: notesOf(response) });
      }
      onImported();
    });
  };
  if (done) {
    return <Done done={done} onClose={onClose} />;
  }
  return (
    <Dialog title="Import agents" onClose={onClose}>
      <form onSubmit={submit}>
        <Field label="File" hint="A file of mnemesh (.mnemesh), or an agent file of Letta (.af).">
          {(id) => (
            <input
              id={id}
              type="file"
              required
              onClick={(event) => (event.currentTarget.value = "")}
              onChange={(event) => choose(event.currentTarget.files?.[0])}
            />
          )}
        </Field>
        {file && <Contents file={file} />}
        {file && (
          <>
            <TextField label="Name" hint="Empty keeps the name." value={name} onChange={setName} />
            {file.format === "mnemesh" && (
              <Check checked={keepIds} onChange={setKeepIds}>
                Keep the ids, if no agent of this mesh has or had them
              </Check>
            )}
            <Check checked={stripMessages} onChange={setStripMessages}>
              Without messages and runs
            </Check>
            {file.format === "mnemesh" && (
              <details>
                <summary>The options that will be sent</summary>
                <Json text={toJsonString(ImportOptionsSchema, create(ImportOptionsSchema, options))} label="Options of ImportAgent" />
              </details>
            )}
          </>
        )}
        <ProblemBox problem={transfer.problem} />
        {transfer.busy && <Busy what={file ? sending(sent) : "Reading the file"} />}
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={transfer.busy || !file}>
            Import
          </button>
        </footer>
      </form>
    </Dialog>
  );
}

function sending(share: number): string {
  return share < 1 ? `Sending, ${Math.round(100 * share)} %` : "The mesh stores the agent";
}

function Contents({ file }: { file: AgentFile }) {
  const found = [...file.counts].map(([kind, number]) => count(number, kindOf(kind)));
  return (
    <div class="card contents" role="status">
      <strong>{file.names.join(", ") || file.file.name}</strong>
      <span class="muted">{[size(file.file.size), ...found].join(" · ")}</span>
    </div>
  );
}

/** Returns "block revision" for "blockRevision". */
function kindOf(kind: string): string {
  return kind.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

/** Returns what a person may want to know about an import: what was used as it is, and what was left out. */
function notesOf({ keptIds, counts, skipped }: ImportAgentResponse): string[] {
  const notes = [keptIds ? "The ids are those of the file." : "The ids are new ones."];
  const used = counts.filter(({ existing }) => existing > 0n);
  if (used.length) {
    notes.push(`Existed before, and used as they are: ${used.map((each) => count(Number(each.existing), typeOf(each.type))).join(", ")}.`);
  }
  return [...notes, ...skipped.map(({ type, id, reason }) => `Left out: ${typeOf(type)} ${id}. ${reason}`)];
}

function typeOf(type: RecordType): string {
  return words(RecordType[type]);
}

function Done({ done, onClose }: { done: Imported; onClose: () => void }) {
  return (
    <Dialog title={`${count(done.agentIds.length, "agent")} imported`} onClose={onClose}>
      {done.notes.length > 0 && (
        <ul class="notes">
          {done.notes.map((note, index) => (
            <li key={index}>{note}</li>
          ))}
        </ul>
      )}
      <footer class="dialog-foot">
        <button type="button" onClick={onClose}>
          Close
        </button>
        {done.agentIds.length === 1 && (
          <a class="button primary" href={linkTo(done.agentIds[0])} onClick={onClose}>
            Open the agent
          </a>
        )}
      </footer>
    </Dialog>
  );
}
