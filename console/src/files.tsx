// The folders of the organization, and the form for a new one.

import { useState } from "preact/hooks";
import type { Folder } from "../gen/mnemesh/files/v1/files_pb";
import { FolderOrderBy } from "../gen/mnemesh/files/v1/folders_service_pb";
import { folders, newRequestId } from "./api";
import { bytes, count } from "./format";
import { FolderPage } from "./folder";
import { Busy, Dialog, Empty, Field, ProblemBox, Time, useAction, useLoad } from "./parts";
import { linkToSection } from "./route";

const PAGE = 100;

export function Files({ folderId }: { folderId: string }) {
  return folderId ? <FolderPage folderId={folderId} /> : <FolderList />;
}

function FolderList() {
  const [isAdding, setAdding] = useState(false);
  const [more, setMore] = useState<{ rows: Folder[]; token: string }>({ rows: [], token: "" });
  const action = useAction();
  const page = async (pageToken: string, signal?: AbortSignal) => {
    const found = await folders.listFolders({ pageSize: PAGE, pageToken, orderBy: FolderOrderBy.NAME }, { signal });
    return { rows: found.folders, token: found.nextPageToken };
  };
  const { value, problem, reload } = useLoad(async (signal) => {
    const first = await page("", signal);
    setMore({ rows: [], token: first.token });
    return first.rows;
  }, []);
  const loadMore = () =>
    action.run(async () => {
      const next = await page(more.token);
      setMore({ rows: [...more.rows, ...next.rows], token: next.token });
    });
  const rows = [...(value ?? []), ...more.rows];
  return (
    <section class="page" aria-labelledby="files-title">
      <header class="page-head">
        <h1 id="files-title">Files</h1>
        <button type="button" class="primary" onClick={() => setAdding(true)}>
          New folder
        </button>
      </header>
      <ProblemBox problem={problem ?? action.problem} retry={problem && reload} />
      {!value && !problem && <Busy what="Loading folders" />}
      {value?.length === 0 && (
        <Empty title="There is no folder yet.">
          <p>
            A folder has documents that agents open, search and quote. Create one with <strong>New folder</strong>, upload
            files, then attach it to an agent.
          </p>
        </Empty>
      )}
      {rows.length > 0 && (
        <ul class="rows" aria-label="Folders">
          {rows.map((folder) => (
            <li class="row" key={folder.id}>
              <a class="row-name" href={linkToSection("files", folder.id)}>
                <span title={folder.name}>{folder.name}</span>
              </a>
              <span class="row-text muted">{folder.description}</span>
              <span class="row-tags muted">
                {count(Number(folder.fileCount), "file")}, {bytes(folder.sizeBytes)}
              </span>
              <span class="row-end muted">
                <Time at={folder.updateTime} />
              </span>
            </li>
          ))}
        </ul>
      )}
      {more.token && (
        <button type="button" disabled={action.busy} onClick={() => void loadMore()}>
          More folders
        </button>
      )}
      {isAdding && <AddFolder onClose={() => setAdding(false)} />}
    </section>
  );
}

function AddFolder({ onClose }: { onClose: () => void }) {
  const [requestId] = useState(newRequestId);
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const action = useAction();
  const add = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const folder = { name: name.trim(), ...(description.trim() ? { description: description.trim() } : {}) };
      const made = await folders.createFolder({ requestId, folder });
      location.hash = linkToSection("files", made.folder!.id);
    });
  };
  return (
    <Dialog title="New folder" onClose={onClose}>
      <form onSubmit={add}>
        <Field label="Name" hint="Part of the names under which agents know its files.">
          {(id) => (
            <input id={id} required autoFocus value={name} onInput={(event) => setName(event.currentTarget.value)} />
          )}
        </Field>
        <Field label="Description" hint="Part of the prompt of the agents that hold it.">
          {(id) => (
            <textarea
              id={id}
              rows={3}
              value={description}
              onInput={(event) => setDescription(event.currentTarget.value)}
            />
          )}
        </Field>
        <ProblemBox problem={action.problem} />
        <footer class="dialog-foot">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={action.busy}>
            Create folder
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
