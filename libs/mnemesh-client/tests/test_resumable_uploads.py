"""Large uploads in parts: broken connections, a restarted service, changes and cancellation meanwhile."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from mnemesh.files.v1 import files_pb2
from mnemesh_client import Mnemesh, uploads
from mnemesh_client.errors import FailedPrecondition, Unavailable
from mnemesh_client.sync import uploads as sync_uploads
from mnemesh_testkit.mesh import faulty_proxy
from mnemesh_testkit.mesh.faulty_proxy import ExecuteThenTimeout
from mnemesh_testkit.mesh.in_process import FilesMesh
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import Face, with_face

pytestmark = pytest.mark.asyncio(loop_scope="module")

PART = 100_000
CONTENT = b"".join(f"line {number}\n".encode() for number in range(22_000))
"""Three parts."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FilesMesh]:
    """The services of this module."""
    async with FilesMesh(tmp_path_factory.mktemp("files")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(mesh: FilesMesh, face: Face) -> AsyncIterator[Mnemesh]:
    """A client of each kind."""
    client = with_face(mesh.client, face)
    yield client
    if client is not mesh.client:
        await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def folder(
    mesh: FilesMesh, client: Mnemesh, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> files_pb2.Folder:
    """An empty folder with the name of the test. Parts are small."""
    monkeypatch.setattr(uploads, "PART_BYTES", PART)
    monkeypatch.setattr(sync_uploads, "PART_BYTES", PART)
    mesh.proxy.clear()
    mesh.proxy.calls.clear()
    return await client.folders.create(request.node.name)


async def contents(client: Mnemesh, folder: files_pb2.Folder) -> list[bytes]:
    files = client.files
    return [await files.read(file.id) async for file in files.list(folder_id=folder.id)]


async def test_content_is_sent_in_parts_with_progress(
    mesh: FilesMesh, client: Mnemesh, folder: files_pb2.Folder
) -> None:
    progress: list[tuple[int, int]] = []

    stored = await client.files.upload(
        folder.id, CONTENT, name="a.txt", on_progress=lambda *moved: progress.append(moved)
    )

    assert stored.file.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert await contents(client, folder) == [CONTENT]
    assert mesh.proxy.calls["WriteUpload"] == 3
    assert progress[-1] == (len(CONTENT), len(CONTENT))
    assert progress == sorted(progress)


@pytest.mark.parametrize(
    ("fault", "method"),
    sampled(
        [
            (fault, method)
            for fault in (faulty_proxy.Unavailable(), ExecuteThenTimeout())
            for method in ("StartUpload", "WriteUpload", "FinishUpload")
        ],
        2,
    ),
)
@pytest.mark.parametrize("face", ["async", pytest.param("sync", marks=pytest.mark.full)], indirect=True)
async def test_broken_connection_sends_only_what_is_missing(
    mesh: FilesMesh,
    client: Mnemesh,
    folder: files_pb2.Folder,
    method: str,
    fault: faulty_proxy.Unavailable | ExecuteThenTimeout,
) -> None:
    mesh.proxy.inject(method, fault)

    await client.files.upload(folder.id, CONTENT, name="a.txt")

    assert await contents(client, folder) == [CONTENT]
    is_lost = method == "WriteUpload" and isinstance(fault, faulty_proxy.Unavailable)
    assert mesh.proxy.calls["WriteUpload"] == (4 if is_lost else 3)


async def test_upload_continues_after_a_restart_of_the_service(
    mesh: FilesMesh, client: Mnemesh, folder: files_pb2.Folder
) -> None:
    writing, asking = mesh.proxy.hold("WriteUpload"), mesh.proxy.hold("GetUpload")
    running = asyncio.ensure_future(client.files.upload(folder.id, CONTENT, name="a.txt"))
    await writing.reached.wait()
    await mesh.stop()
    writing.release.set()
    await asking.reached.wait()
    await mesh.start()
    asking.release.set()

    assert (await running).file.size_bytes == len(CONTENT)
    assert await contents(client, folder) == [CONTENT]


async def test_file_that_changes_meanwhile_is_an_error_and_leaves_nothing(
    mesh: FilesMesh, client: Mnemesh, folder: files_pb2.Folder, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    for changed in (b"x" * len(CONTENT), b"shorter"):
        path.write_bytes(CONTENT)
        with pytest.raises(FailedPrecondition, match="changed during the upload"):
            await client.files.upload(folder.id, path, on_progress=lambda *_, c=changed: path.write_bytes(c))

    assert await contents(client, folder) == []
    assert mesh.proxy.calls["CancelUpload"] == 2


@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_cancelled_upload_is_discarded_by_the_server(
    mesh: FilesMesh, client: Mnemesh, folder: files_pb2.Folder
) -> None:
    hold = mesh.proxy.hold("FinishUpload")
    running = asyncio.ensure_future(client.files.upload(folder.id, CONTENT, name="a.txt"))
    await hold.reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert mesh.proxy.calls["CancelUpload"] == 1
    assert await contents(client, folder) == []


async def test_error_of_the_progress_callback_ends_the_upload_and_leaves_nothing(
    mesh: FilesMesh, client: Mnemesh, folder: files_pb2.Folder
) -> None:
    def interrupt(sent: int, _size: int) -> None:
        if sent > PART:
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        await client.files.upload(folder.id, CONTENT, name="a.txt", on_progress=interrupt)

    assert mesh.proxy.calls["CancelUpload"] == 1
    assert await contents(client, folder) == []


async def test_server_that_does_not_answer_ends_the_upload(
    mesh: FilesMesh, client: Mnemesh, folder: files_pb2.Folder, face: Face
) -> None:
    mesh.proxy.inject("WriteUpload", faulty_proxy.Unavailable(), times=100)

    async with with_face(Mnemesh(files=mesh.proxy.address, patience=0.0), face, patience=0.0) as impatient:
        with pytest.raises(Unavailable):
            await impatient.files.upload(folder.id, CONTENT, name="a.txt")

    mesh.proxy.clear()
    assert await contents(client, folder) == []
