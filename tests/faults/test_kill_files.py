"""kill -9 of the files service while it stores and embeds: every file is processed once, and nothing is lost."""

import asyncio

import pytest
from mnemesh.archival.v1 import passages_service_pb2 as passages_rpc
from mnemesh.files.v1 import files_pb2
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300))]

LIMIT_SECONDS = scaled(120)
TEXT = "\n\n".join(f"Paragraph {number} is about the harbour and its ships. " * 8 for number in range(260)).encode()
"""More passages than one insertion into the archive has."""


async def texts(mesh: ProcessMesh, archive_id: str) -> list[str]:
    """The passages of an archive."""
    found: list[str] = []
    request = passages_rpc.ListPassagesRequest(page_size=100, order=1)
    request.filter.archive_id = archive_id
    while True:
        page = await mesh.client.passages.stub.ListPassages(request)
        found += [passage.text for passage in page.passages]
        if not page.passages or len(page.passages) < 100:
            return found
        request.after_id = page.passages[-1].id


async def processed(mesh: ProcessMesh, file_id: str) -> files_pb2.File:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await mesh.client.files.wait(file_id)


@pytest.mark.full
async def test_a_kill_during_the_insertion_of_passages(mesh: ProcessMesh) -> None:
    folder = await mesh.client.folders.create("killed-while-embedding")
    hold = mesh.proxies["archival"].hold("InsertPassages", executed=True)
    stored = (await mesh.client.files.upload(folder.id, TEXT, name="harbour.txt")).file
    async with asyncio.timeout(LIMIT_SECONDS):
        await hold.reached.wait()
        await mesh.kill("files")
        hold.release.set()
        await mesh.start("files")
    done = await processed(mesh, stored.id)
    assert (done.status, done.chunks_embedded) == (files_pb2.FILE_STATUS_COMPLETED, done.total_chunks)
    found = await texts(mesh, folder.archive_id)
    assert len(found) == done.total_chunks > 100
    assert len(set(found)) == len(found), "a passage was inserted twice"
    assert await mesh.client.files.read(stored.id) == TEXT


@pytest.mark.full
async def test_a_kill_between_the_parts_of_an_upload(mesh: ProcessMesh) -> None:
    folder = await mesh.client.folders.create("killed-while-uploading")
    header = rpc.UploadFileHeader(folder_id=folder.id, name="a.txt", original_name="a.txt", size_bytes=len(TEXT))
    stub = mesh.client.files.stub
    upload = (await stub.StartUpload(rpc.StartUploadRequest(request_id="killed-1", header=header))).upload
    half = len(TEXT) // 2
    begun = rpc.WriteUploadRequest(upload_id=upload.id, data=TEXT[:half])
    written = (await stub.WriteUpload(iter([begun]))).upload.received_bytes
    await mesh.kill("files")
    await mesh.start("files")
    known = (await stub.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload.received_bytes
    assert known == written == half
    rest = rpc.WriteUploadRequest(upload_id=upload.id, offset=half, data=TEXT[half:])
    await stub.WriteUpload(iter([rest]))
    finish = rpc.FinishUploadRequest(request_id="killed-1/finish", upload_id=upload.id)
    stored = (await stub.FinishUpload(finish)).file
    await mesh.kill("files")
    await mesh.start("files")
    assert (await stub.FinishUpload(finish)).file.id == stored.id, "a repeated request stored another file"
    assert (await processed(mesh, stored.id)).status == files_pb2.FILE_STATUS_COMPLETED
    assert await mesh.client.files.read(stored.id) == TEXT
