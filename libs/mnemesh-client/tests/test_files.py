"""Folders and files through the client: uploads, downloads and what is refused."""

import asyncio
import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest
import pytest_asyncio
from mnemesh.files.v1 import files_pb2, files_service_pb2
from mnemesh_client import Mnemesh
from mnemesh_client.errors import AlreadyExists, FailedPrecondition, FileProcessingFailed, InvalidArgument, NotFound
from mnemesh_client.uploads import PART_BYTES
from mnemesh_testkit.mesh.faulty_proxy import ExecuteThenTimeout, Unavailable
from mnemesh_testkit.mesh.in_process import FilesMesh

pytestmark = pytest.mark.asyncio(loop_scope="module")

CREATED = files_service_pb2.UPLOAD_OUTCOME_CREATED
LARGE = bytes(range(256)) * (2 * PART_BYTES // 256 + 1000)
"""Three parts."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesMesh]:
    """The services of this module."""
    async with FilesMesh(tmp_path_factory.mktemp("files"), private_networks="127.0.0.1/32") as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(mesh: FilesMesh) -> Mnemesh:
    """A client."""
    return mesh.client


@pytest_asyncio.fixture(loop_scope="module")
async def folder(client: Mnemesh, request: pytest.FixtureRequest) -> files_pb2.Folder:
    """An empty folder with the name of the test."""
    return await client.folders.create(request.node.name, description="For a test.")


async def names(client: Mnemesh, folder: files_pb2.Folder) -> list[str]:
    return [file.name async for file in client.files.list(folder_id=folder.id)]


async def test_folders_are_created_found_changed_listed_and_deleted(client: Mnemesh) -> None:
    folder = await client.folders.create("guides", instructions="Read me first.", metadata={"a": 1}, request_id="once")

    assert (
        await client.folders.create("guides", instructions="Read me first.", metadata={"a": 1}, request_id="once")
    ) == folder
    assert (await client.folders.find("guides")).id == (await client.folders.find(folder.id)).id == folder.id
    changed = await client.folders.update(folder.id, name="manuals", description="All of them.", instructions=None)
    assert (changed.name, changed.description, changed.HasField("instructions")) == ("manuals", "All of them.", False)
    assert [each.name async for each in client.folders.list(name_search="MANUAL")] == ["manuals"]
    with pytest.raises(AlreadyExists):
        await client.folders.create("manuals")
    with pytest.raises(InvalidArgument):
        await client.folders.create("a/b")
    await client.folders.delete(folder.id)
    with pytest.raises(NotFound, match="no folder 'manuals'"):
        await client.folders.find("manuals")


@pytest.mark.parametrize("kind", ["path", "text path", "bytes", "file object", "buffer"])
async def test_content_is_uploaded_from_a_path_bytes_or_a_file_object(
    client: Mnemesh, folder: files_pb2.Folder, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(b"# Notes\n")
    with path.open("rb") as opened:
        source: str | Path | bytes | BinaryIO = {
            "path": path,
            "text path": str(path),
            "bytes": b"# Notes\n",
            "file object": opened,
            "buffer": io.BytesIO(b"# Notes\n"),
        }[kind]
        name = "notes.md" if kind in ("bytes", "buffer") else None
        stored = await client.files.upload(folder.id, source, name=name, path="docs/notes.md")

    file = stored.file
    assert (stored.outcome, file.name, file.size_bytes, file.path) == (CREATED, "notes.md", 8, "docs/notes.md")
    assert file.sha256 == hashlib.sha256(b"# Notes\n").hexdigest()
    assert file.HasField("original_update_time") == kind.endswith("path")
    assert await client.files.read(file.id) == b"# Notes\n"
    assert (await client.files.find(f"{folder.name}/notes.md")).id == file.id


async def test_source_that_cannot_be_read_is_refused_before_anything_is_sent(
    mesh: FilesMesh, folder: files_pb2.Folder, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = mesh.proxy.calls.total()
    for source, problem in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        ("a\0b", "null byte"),
        (io.StringIO("text"), "mode 'rb'"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            await mesh.client.files.upload(folder.id, source, name="a.md")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="Use skip, error, suffix or replace"):
        await mesh.client.files.upload(folder.id, b"", name="a.md", on_duplicate="ask")  # type: ignore[arg-type]
    assert mesh.proxy.calls.total() == before


async def test_url_is_downloaded_by_the_server_and_processed(client: Mnemesh, folder: files_pb2.Folder) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        status = b"200 OK" if path == b"/notes.md" else b"404 Not Found"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 8\r\nConnection: close\r\n\r\n# Notes\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stored = await client.files.upload(folder.id, f"{base}/notes.md")
        missing = await client.files.upload(folder.id, f"{base}/none.md", name="none.md")
        ended = {file.name: file async for file in client.files.wait_all((stored.file.id, missing.file.id))}

    assert {name: file.status for name, file in ended.items()} == {
        "notes.md": files_pb2.FILE_STATUS_COMPLETED,
        "none.md": files_pb2.FILE_STATUS_ERROR,
    }
    assert await client.files.text(stored.file.id) == "# Notes"
    with pytest.raises(FileProcessingFailed, match="404"):
        await client.files.wait(missing.file.id)
    with pytest.raises(InvalidArgument, match="not public"):
        await client.files.upload(folder.id, "http://10.0.0.1/notes.md")


async def test_duplicates_are_skipped_refused_renamed_or_replaced(client: Mnemesh, folder: files_pb2.Folder) -> None:
    first = (await client.files.upload(folder.id, b"1", name="a.md")).file

    skipped = await client.files.upload(folder.id, b"2", name="a.md", on_duplicate="skip")
    assert (skipped.outcome, skipped.file.id) == (files_service_pb2.UPLOAD_OUTCOME_SKIPPED, first.id)
    with pytest.raises(AlreadyExists):
        await client.files.upload(folder.id, b"2", name="a.md", on_duplicate="error")
    assert (await client.files.upload(folder.id, b"2", name="a.md")).file.name == "a_(1).md"
    replaced = await client.files.upload(folder.id, b"3", name="a.md", on_duplicate="replace")
    assert (replaced.outcome, replaced.file.id, replaced.file.revision) == (
        files_service_pb2.UPLOAD_OUTCOME_REPLACED,
        first.id,
        2,
    )
    assert await client.files.read(first.id) == b"3"


async def test_repeated_request_is_one_file(client: Mnemesh, folder: files_pb2.Folder) -> None:
    for _ in range(2):
        await client.files.upload(folder.id, b"x", name="a.md", request_id="upload-once")

    assert await names(client, folder) == ["a.md"]


@pytest.mark.parametrize("fault", [Unavailable(), ExecuteThenTimeout()])
async def test_small_upload_survives_a_broken_connection(
    mesh: FilesMesh, folder: files_pb2.Folder, fault: Unavailable | ExecuteThenTimeout
) -> None:
    mesh.proxy.inject("UploadFile", fault)

    await mesh.client.files.upload(folder.id, b"x", name="a.md")

    assert await names(mesh.client, folder) == ["a.md"]


async def test_file_is_found_by_a_unique_name(client: Mnemesh, folder: files_pb2.Folder) -> None:
    other = await client.folders.create("other")
    for each in (folder, other):
        await client.files.upload(each.id, b"x", name="same.md")
    await client.files.upload(folder.id, b"x", name="file-report.md")

    assert (await client.files.find("file-report.md")).name == "file-report.md"
    assert (await client.files.find("other/same.md")).folder_id == other.id
    with pytest.raises(InvalidArgument, match=r"Several files are named .same\.md."):
        await client.files.find("same.md")
    with pytest.raises(NotFound, match="mnemesh files list"):
        await client.files.find("other/none.md")


async def test_download_writes_the_whole_file_or_nothing(
    client: Mnemesh, folder: files_pb2.Folder, tmp_path: Path
) -> None:
    file = (await client.files.upload(folder.id, b"content", name="a.md")).file
    target, progress = tmp_path / "copy.md", []

    got = await client.files.download(file.id, target, on_progress=lambda *moved: progress.append(moved))

    assert (target.read_bytes(), got.id, progress[-1]) == (b"content", file.id, (7, 7))
    target.write_text("mine")
    with pytest.raises(FailedPrecondition, match="exists"):
        await client.files.download(file.id, target)
    assert target.read_text() == "mine"
    await client.files.download(file.id, target, overwrite=True)
    assert target.read_bytes() == b"content"
    with pytest.raises(NotFound):
        await client.files.download("file-00000000-0000-4000-8000-000000000000", tmp_path / "none.md")
    with pytest.raises(InvalidArgument, match="cannot be written"):
        await client.files.download(file.id, tmp_path / "none" / "a.md")
    assert [each.name for each in tmp_path.iterdir()] == ["copy.md"]


async def test_deleted_file_is_gone(client: Mnemesh, folder: files_pb2.Folder) -> None:
    file = (await client.files.upload(folder.id, b"x", name="a.md")).file

    await client.files.delete(file.id)
    await client.files.delete(file.id)

    assert await names(client, folder) == []
    assert await client.files.count(folder_id=folder.id) == 0
    with pytest.raises(NotFound):
        await client.files.read(file.id)
