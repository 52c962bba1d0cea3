// The folders of the organization, and the form for a new one.

import { useState } from "preact/hooks";
import { FolderOrderBy } from "../gen/mnemesh/files/v1/folders_service_pb";
import { folders } from "./clients/files";
import { FormDialog } from "./dialog";
import { FolderPage } from "./folder";
import { bytes, count } from "./format";
import { Listing, Row, usePages } from "./list";
import { Empty, TextField, Time } from "./parts";
import { linkToSection } from "./route";

const PAGE = 100;

export function Files({ itemId }: { itemId: string }) {
  return itemId ? <FolderPage folderId={itemId} /> : <FolderList />;
}

function FolderList() {
  const [isAdding, setAdding] = useState(false);
  const pages = usePages(async (pageToken, signal) => {
    const found = await folders.listFolders({ pageSize: PAGE, pageToken, orderBy: FolderOrderBy.NAME }, { signal });
    return { rows: found.folders, token: found.nextPageToken };
  }, []);
  return (
    <section class="page" aria-labelledby="files-title">
      <header class="page-head">
        <h1 id="files-title">Files</h1>
        <button type="button" class="primary" onClick={() => setAdding(true)}>
          New folder
        </button>
      </header>
      <Listing
        pages={pages}
        of="Folders"
        empty={
          <Empty title="There is no folder yet.">
            <p>
              A folder has documents that agents open, search and quote. Create one with <strong>New folder</strong>, upload
              files, then attach it to an agent.
            </p>
          </Empty>
        }
      >
        {(folder) => (
          <Row
            key={folder.id}
            name={folder.name}
            href={linkToSection("files", folder.id)}
            text={folder.description}
            tags={`${count(Number(folder.fileCount), "file")}, ${bytes(folder.sizeBytes)}`}
            end={<Time at={folder.updateTime} />}
          />
        )}
      </Listing>
      {isAdding && <AddFolder onClose={() => setAdding(false)} />}
    </section>
  );
}

function AddFolder({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const add = async (requestId: string) => {
    const folder = { name: name.trim(), description: description.trim() || undefined };
    const made = await folders.createFolder({ requestId, folder });
    location.hash = linkToSection("files", made.folder!.id);
  };
  return (
    <FormDialog title="New folder" submit="Create folder" send={add} onClose={onClose}>
      <TextField
        label="Name"
        hint="Part of the names under which agents know its files."
        required
        autoFocus
        value={name}
        onChange={setName}
      />
      <TextField
        label="Description"
        hint="Part of the prompt of the agents that hold it."
        rows={3}
        value={description}
        onChange={setDescription}
      />
    </FormDialog>
  );
}
