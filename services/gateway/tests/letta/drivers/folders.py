"""Folders and their files."""

import time
from typing import Any

import letta_client
import pytest
from mnemesh_testkit.timeouts import scaled

from ..lab import Lab, drives


@drives("folders.create", "folders.retrieve", "folders.list", "folders.update", "folders.delete", "folders.agents.list")
def folders(lab: Lab) -> None:
    folders = lab.client.folders
    made = folders.create(name="notes", description="Mine.", metadata={"a": 1}, embedding="mnemesh/hashing-256")
    other = folders.create(name="papers", instructions="Read them.")
    assert made.id.startswith("source-")
    assert (made.name, made.description, made.metadata) == ("notes", "Mine.", {"a": 1})
    assert made.embedding_config.handle == "mnemesh/hashing-256"
    assert folders.retrieve(made.id) == made
    assert [item.id for item in folders.list() if item.id in (made.id, other.id)] == [other.id, made.id]
    assert [item.id for item in folders.list(name="papers")] == [other.id]
    older: Any = lab.client.get("/v1/sources/name/papers", cast_to=object)
    assert older == other.id
    changed = folders.update(made.id, description="Ours.")
    assert (changed.name, changed.description, changed.metadata) == ("notes", "Ours.", {"a": 1})
    agent = lab.agent()
    lab.client.agents.folders.attach(made.id, agent_id=agent.id)
    assert list(folders.agents.list(made.id)) == [agent.id]
    with pytest.raises(letta_client.ConflictError, match="papers"):
        folders.create(name="papers")
    folders.delete(made.id)
    with pytest.raises(letta_client.NotFoundError):
        folders.retrieve(made.id)


@drives("folders.files.upload", "folders.files.list", "folders.files.retrieve", "folders.files.delete")
def files(lab: Lab) -> None:
    files = lab.client.folders.files
    folder, other = lab.client.folders.create(name="uploads"), lab.client.folders.create(name="empty")
    text = "The comet returns.\nIn May."
    made = files.upload(folder.id, file=("comet.txt", text.encode()))
    assert made.id.startswith("file-")
    assert (made.source_id, made.file_name, made.file_size) == (folder.id, "comet.txt", len(text))

    deadline = time.monotonic() + scaled(60)
    while (file := files.retrieve(made.id, folder_id=folder.id, include_content=True)).processing_status != "completed":
        assert file.processing_status != "error", file.error_message
        assert time.monotonic() < deadline, file
        time.sleep(0.02)
    assert (file.content, file.chunks_embedded) == (text, file.total_chunks)
    again = files.upload(folder.id, file=("comet.txt", b"Second."))
    assert (again.id != made.id, again.file_name != "comet.txt") == (True, True)
    assert files.upload(folder.id, file=("comet.txt", b"Third."), duplicate_handling="skip").id == made.id
    with pytest.raises(letta_client.ConflictError):
        files.upload(folder.id, file=("comet.txt", b"Fourth."), duplicate_handling="error")
    assert [item.id for item in files.list(folder.id)] == [again.id, made.id]
    assert list(files.list(other.id)) == []
    passages: Any = lab.client.get(f"/v1/folders/{folder.id}/passages", cast_to=object)
    assert any("comet" in item["text"] for item in passages)
    replaced = files.upload(folder.id, file=("comet.txt", b"Fifth, and longer."), duplicate_handling="replace")
    assert (replaced.id, replaced.file_name, replaced.file_size) == (made.id, "comet.txt", 18)
    with pytest.raises(letta_client.UnprocessableEntityError, match="file"):
        lab.client.post(f"/v1/folders/{folder.id}/upload", body={}, cast_to=object)
    for act in (files.retrieve, files.delete):
        with pytest.raises(letta_client.NotFoundError):
            act(made.id, folder_id=other.id)
    files.delete(made.id, folder_id=folder.id)
    with pytest.raises(letta_client.NotFoundError):
        files.retrieve(made.id, folder_id=folder.id)
