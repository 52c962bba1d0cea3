// One folder: uploads with their progress, its files with their processing, and what each agent has open of them.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Agent } from "../gen/mnemesh/agents/v1/agents_pb";
import { type Directory, type DirectoryFile, type File as StoredFile, FileStatus, type Folder } from "../gen/mnemesh/files/v1/files_pb";
import { DuplicateHandling, FileOrderBy } from "../gen/mnemesh/files/v1/files_service_pb";
import { newRequestId, type Problem, problemOf } from "./api";
import { agents } from "./clients/agents";
import { agentFiles, files, folders } from "./clients/files";
import { FormDialog } from "./dialog";
import { bytes, count, number, words } from "./format";
import { Holders, ItemHead } from "./list";
import { Busy, Empty, ProblemBox, Time, useAction, useInterval, useLoad } from "./parts";
import { linkToSection } from "./route";
import { upload } from "./upload";

const PAGE = 200;
const REFRESH_MS = 1_500;
const IDLE_REFRESH_MS = 10_000;
const AT_ONCE = 3;
const ENDED = [FileStatus.COMPLETED, FileStatus.ERROR];

interface FolderState {
  folder: Folder;
  rows: StoredFile[];
  token: string;
}

export function FolderPage({ folderId }: { folderId: string }) {
  const [pages, setPages] = useState(1);
  const { value, problem, reload } = useLoad<FolderState>(
    async (signal) => {
      const { folder } = await folders.getFolder({ folderId }, { signal });
      const rows: StoredFile[] = [];
      let token = "";
      for (let page = 0; page < pages && (page === 0 || token); page += 1) {
        const request = { filter: { folderId }, pageSize: PAGE, pageToken: token, orderBy: FileOrderBy.NAME };
        const found = await files.listFiles(request, { signal });
        rows.push(...found.files);
        token = found.nextPageToken;
      }
      return { folder: folder!, rows, token };
    },
    [folderId, pages],
  );
  const isProcessing = value?.rows.some((file) => !ENDED.includes(file.status)) ?? false;
  useInterval(reload, isProcessing ? REFRESH_MS : 0);
  const holders = useHolders(folderId);
  return (
    <section class="page" aria-labelledby="folder-name">
      <ProblemBox problem={problem} retry={reload} list="files" />
      {!value && !problem && <Busy what="Loading the folder" />}
      {value && (
        <>
          <FolderHead folder={value.folder} />
          <Uploads folderId={folderId} onStored={reload} />
          <FileList rows={value.rows} holders={holders.value ?? []} onChange={reload} />
          {value.token && (
            <button type="button" onClick={() => setPages(pages + 1)}>
              More files
            </button>
          )}
          <Holders
            of="folder"
            holders={holders.value?.map(({ agent }) => agent)}
            problem={holders.problem}
            reload={holders.reload}
            words={{ give: "Attach", take: "Detach" }}
            give={(requestId, agentId) => agentFiles.attachFolder({ requestId, agentId, folderId })}
            take={(requestId, agentId) => agentFiles.detachFolder({ requestId, agentId, folderId })}
            note={({ id }) => windows(holders.value?.find(({ agent }) => agent.id === id)?.directory)}
          />
        </>
      )}
    </section>
  );
}

function FolderHead({ folder }: { folder: Folder }) {
  const [isDeleting, setDeleting] = useState(false);
  const remove = async (requestId: string) => {
    await folders.deleteFolder({ requestId, folderId: folder.id });
    location.hash = linkToSection("files");
  };
  const amount = count(Number(folder.fileCount), "file");
  return (
    <>
      <ItemHead
        section="files"
        back="All folders"
        id="folder-name"
        name={folder.name}
        about={<span class="muted">{`${amount}, ${bytes(folder.sizeBytes)}`}</span>}
      >
        <button type="button" class="danger" onClick={() => setDeleting(true)}>
          Delete
        </button>
      </ItemHead>
      {folder.description && <p class="text muted">{folder.description}</p>}
      {isDeleting && (
        <FormDialog title={`Delete ${folder.name}?`} submit="Delete folder" isDanger send={remove} onClose={() => setDeleting(false)}>
          <p>This cannot be undone. It deletes the folder with {amount} and all passages, and takes it from all agents.</p>
        </FormDialog>
      )}
    </>
  );
}

/** An agent that holds the folder, with its part of the agent's prompt. */
interface Holder {
  agent: Agent;
  directory: Directory | undefined;
}

function useHolders(folderId: string) {
  const loaded = useLoad<Holder[]>(
    async (signal) => {
      const { agentIds } = await folders.listFolderAgents({ folderId, pageSize: PAGE }, { signal });
      if (agentIds.length === 0) {
        return [];
      }
      const [{ agents: found }, { directories }] = await Promise.all([
        agents.listAgents({ filter: { agentIds }, pageSize: PAGE }, { signal }),
        agentFiles.batchGetDirectories({ agentIds }, { signal }),
      ]);
      return found.map((agent) => {
        const known = directories.find((each) => each.agentId === agent.id)?.directories ?? [];
        return { agent, directory: known.find((each) => each.folderId === folderId) };
      });
    },
    [folderId],
  );
  useInterval(loaded.reload, IDLE_REFRESH_MS);
  return loaded;
}

interface Sending {
  key: number;
  file: File;
  share: number;
  problem?: Problem;
  controller: AbortController;
}

/** Where files are dropped or chosen, and those that are on their way. */
function Uploads({ folderId, onStored }: { folderId: string; onStored: () => Promise<void> }) {
  const [sending, setSending] = useState<Sending[]>([]);
  const [isOver, setOver] = useState(false);
  const [duplicates, setDuplicates] = useState(DuplicateHandling.REPLACE);
  const waiting = useRef<Sending[]>([]);
  const active = useRef(0);
  const nextKey = useRef(0);
  useEffect(() => () => waiting.current.splice(0).forEach(({ controller }) => controller.abort()), []);
  const change = (key: number, changed: Partial<Sending>) =>
    setSending((all) => all.map((each) => (each.key === key ? { ...each, ...changed } : each)));
  const drop = (key: number) => setSending((all) => all.filter((each) => each.key !== key));
  const next = async (): Promise<void> => {
    const one = active.current < AT_ONCE ? waiting.current.shift() : undefined;
    if (!one) {
      return;
    }
    active.current += 1;
    void next();
    try {
      const { file, controller } = one;
      const onProgress = (share: number) => change(one.key, { share });
      await upload({ folderId, file, duplicateHandling: duplicates, signal: controller.signal, onProgress });
      drop(one.key);
      await onStored();
    } catch (error) {
      if (one.controller.signal.aborted) {
        drop(one.key);
      } else {
        change(one.key, { problem: problemOf(error) });
      }
    }
    active.current -= 1;
    void next();
  };
  const add = (chosen: Iterable<File>) => {
    const added = Array.from(chosen, (file) => {
      nextKey.current += 1;
      return { key: nextKey.current, file, share: 0, controller: new AbortController() };
    });
    setSending((all) => [...all, ...added]);
    waiting.current.push(...added);
    void next();
  };
  const cancel = ({ key, controller }: Sending) => {
    waiting.current = waiting.current.filter((each) => each.key !== key);
    controller.abort();
    drop(key);
  };
  return (
    <div
      class={isOver ? "dropzone is-over" : "dropzone"}
      onDragOver={(event) => (event.preventDefault(), setOver(true))}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        add(event.dataTransfer?.files ?? []);
      }}
    >
      <div class="buttons">
        <label class="attach button">
          Upload files
          <input
            type="file"
            multiple
            onChange={(event) => {
              add(event.currentTarget.files ?? []);
              event.currentTarget.value = "";
            }}
          />
        </label>
        <span class="muted">or drop them here</span>
        <span class="spacer" />
        <label class="inline muted">
          A file with the same name
          <select
            class="narrow"
            value={duplicates}
            onChange={(event) => setDuplicates(Number(event.currentTarget.value))}
          >
            <option value={DuplicateHandling.REPLACE}>is replaced</option>
            <option value={DuplicateHandling.SUFFIX}>is kept, too</option>
            <option value={DuplicateHandling.SKIP}>is kept alone</option>
          </select>
        </label>
      </div>
      {sending.length > 0 && (
        <ul class="sending" aria-label="Uploads">
          {sending.map((each) => (
            <li key={each.key}>
              <span class="row-name">{each.file.name}</span>
              <span class="muted">{bytes(each.file.size)}</span>
              {!each.problem && (
                <progress max={1} value={each.share} aria-label={`Upload of ${each.file.name}`}>
                  {Math.round(each.share * 100)} %
                </progress>
              )}
              <button type="button" class="quiet" aria-label={`Cancel ${each.file.name}`} onClick={() => cancel(each)}>
                ✕
              </button>
              <ProblemBox problem={each.problem} />
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

interface FileListProps {
  rows: StoredFile[];
  holders: Holder[];
  onChange: () => Promise<void>;
}

function FileList({ rows, holders, onChange }: FileListProps) {
  const action = useAction();
  const remove = (fileId: string) =>
    action.run(async () => {
      await files.deleteFile({ requestId: newRequestId(), fileId });
      await onChange();
    });
  const retry = (fileId: string) =>
    action.run(async () => {
      await files.retryFile({ requestId: newRequestId(), fileId });
      await onChange();
    });
  return (
    <div class="stack">
      <ProblemBox problem={action.problem} />
      {rows.length === 0 && (
        <Empty title="The folder is empty.">
          <p>Upload documents, tables, slides, code or text. They are read and indexed in the background.</p>
        </Empty>
      )}
      {rows.map((file) => (
        <FileRow
          key={file.id}
          file={file}
          openIn={holders.filter(({ directory }) => openFile(directory, file.id))}
          isBusy={action.busy}
          onDelete={() => void remove(file.id)}
          onRetry={() => void retry(file.id)}
        />
      ))}
    </div>
  );
}

function openFile(directory: Directory | undefined, fileId: string): DirectoryFile | undefined {
  return directory?.files.find((file) => file.fileId === fileId && file.isOpen);
}

interface FileRowProps {
  file: StoredFile;
  openIn: Holder[];
  isBusy: boolean;
  onDelete: () => void;
  onRetry: () => void;
}

function FileRow({ file, openIn, isBusy, onDelete, onRetry }: FileRowProps) {
  const [isOpen, setOpen] = useState(false);
  const isReady = file.status === FileStatus.COMPLETED;
  return (
    <details class="card step" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span class="run-input">{file.name}</span>
        {openIn.length > 0 && <span class="tag">open in {openIn.map(({ agent }) => agent.name).join(", ")}</span>}
        <span class="muted">
          {bytes(file.sizeBytes)}
          {file.totalPages !== undefined && ` · ${count(file.totalPages, "page")}`}
          {file.totalLines !== undefined && ` · ${count(file.totalLines, "line")}`}
        </span>
        <ProcessingTag file={file} />
      </summary>
      {file.errorMessage && <p class="problem">{file.errorMessage}</p>}
      {file.warnings.map((warning) => (
        <p key={warning} class="muted">
          {warning}
        </p>
      ))}
      {isOpen && file.totalLines !== undefined && <FileText file={file} />}
      <div class="buttons">
        <span class="muted">
          {file.mediaType}, stored <Time at={file.updateTime} />
        </span>
        <span class="spacer" />
        {(isReady || file.status === FileStatus.ERROR) && (
          <button type="button" disabled={isBusy} onClick={onRetry}>
            Read it again
          </button>
        )}
        <button type="button" class="quiet danger" disabled={isBusy} aria-label={`Delete ${file.name}`} onClick={onDelete}>
          Delete
        </button>
      </div>
    </details>
  );
}

function ProcessingTag({ file }: { file: StoredFile }) {
  const name = words(FileStatus[file.status]);
  if (file.status === FileStatus.EMBEDDING && file.totalChunks) {
    return <span class="tag warn">{`${name} ${number(file.chunksEmbedded ?? 0)} / ${number(file.totalChunks)}`}</span>;
  }
  const kind = file.status === FileStatus.ERROR ? "bad" : file.status === FileStatus.COMPLETED ? "good" : "warn";
  return <span class={`tag ${kind}`}>{file.status === FileStatus.COMPLETED ? "ready" : name}</span>;
}

const SHOWN_LINES = 200;

/** The parsed text, as agents read it. */
function FileText({ file }: { file: StoredFile }) {
  const [length, setLength] = useState(SHOWN_LINES);
  const { value, problem, reload } = useLoad(
    (signal) => files.getFileText({ fileId: file.id, offset: 0, length }, { signal }),
    [file.id, file.revision, length],
  );
  if (!value) {
    return problem ? <ProblemBox problem={problem} retry={reload} /> : <Busy what="Loading the text" />;
  }
  return (
    <div class="stack tight">
      <pre class="code" tabIndex={0} aria-label={`Text of ${file.name}`}>
        {value.text}
      </pre>
      {value.nextOffset !== undefined && (
        <button type="button" onClick={() => setLength(length * 4)}>
          More lines
        </button>
      )}
    </div>
  );
}

/** Returns the windows of an agent in words: "report.pdf, lines 1 to 200 of 950". */
function windows(directory: Directory | undefined): string {
  const open = directory?.files.filter((file) => file.isOpen) ?? [];
  const name = (file: DirectoryFile) => file.name.slice(file.name.indexOf("/") + 1);
  const lines = ({ view }: DirectoryFile) =>
    view ? `, lines ${view.startLine ?? 1} to ${view.endLine ?? view.totalLines} of ${view.totalLines}` : "";
  return open.length ? open.map((file) => name(file) + lines(file)).join("; ") : "no file open";
}
