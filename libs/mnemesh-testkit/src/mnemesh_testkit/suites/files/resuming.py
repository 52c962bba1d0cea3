"""Uploads that are interrupted and continued."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.ids import new_id

from mnemesh_testkit.errors import refused
from mnemesh_testkit.suites.files.calls import ABSENT_FOLDER, SKIP, Files, FilesCases, reason

CONTENT = bytes(range(256)) * 4
HASH = hashlib.sha256(CONTENT).hexdigest()


class Resuming(FilesCases):
    """What the contract says of StartUpload, WriteUpload, GetUpload, FinishUpload and CancelUpload."""

    async def test_upload_is_continued_where_it_broke(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, size_bytes=len(CONTENT), sha256=HASH, metadata="{}")
        assert (upload.received_bytes, upload.header.original_name) == (0, "a.bin")
        assert upload.expire_time.seconds - upload.create_time.seconds == 86_400
        assert (await write(client, upload.id, 0, CONTENT[:100], CONTENT[100:300])).received_bytes == 300
        got = (await client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload
        assert got.received_bytes == 300
        gap = await refused(write(client, upload.id, 301, CONTENT[301:]))
        assert (gap.reason, gap.metadata["offset"]) == ("FAILED_PRECONDITION", "300")
        assert (await write(client, upload.id, 200, CONTENT[200:700])).received_bytes == 700
        assert (await write(client, upload.id, 0, CONTENT[:50])).received_bytes == 700
        early = await refused(finish(client, upload.id))
        assert (early.reason, early.field) == ("INVALID_ARGUMENT", "header.size_bytes")
        assert (await write(client, upload.id, 700, CONTENT[700:])).received_bytes == len(CONTENT)
        done = await finish(client, upload.id, "f-1")
        assert (done.outcome, done.file.sha256, done.file.metadata) == (rpc.UPLOAD_OUTCOME_CREATED, HASH, "{}")
        assert (await finish(client, upload.id, "f-1")).file.id == done.file.id
        assert await client.content(done.file.id) == CONTENT
        assert await reason(finish(client, upload.id, "f-2")) == "NOT_FOUND"
        assert await reason(write(client, upload.id, 0, b"x")) == "NOT_FOUND"

    async def test_data_before_a_broken_stream_is_kept(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id)

        async def broken() -> AsyncIterator[rpc.WriteUploadRequest]:
            yield rpc.WriteUploadRequest(upload_id=upload.id, data=CONTENT[:10])
            yield rpc.WriteUploadRequest(data=CONTENT[10:20])
            yield rpc.WriteUploadRequest(offset=7, data=b"x")

        assert await reason(client.files.WriteUpload(broken())) == "INVALID_ARGUMENT"
        got = (await client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload
        assert got.received_bytes == 20

    async def test_repeated_start_returns_the_first_upload(self, client: Files, folder: pb.Folder) -> None:
        first = await start(client, folder.id, request_id="s-1")
        assert (await start(client, folder.id, request_id="s-1")).id == first.id
        assert (await start(client, folder.id)).id != first.id

    async def test_wrong_hash_is_refused_and_the_upload_is_kept(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, sha256="0" * 64)
        await write(client, upload.id, 0, CONTENT)
        assert (await refused(finish(client, upload.id))).field == "header.sha256"
        assert (await client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))).upload.received_bytes
        assert await client.names() == []

    async def test_cancelled_upload_is_gone(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id)
        await write(client, upload.id, 0, CONTENT)
        for request_id in ("c-1", "c-1", "c-2"):
            await client.files.CancelUpload(rpc.CancelUploadRequest(upload_id=upload.id, request_id=request_id))
        assert await reason(finish(client, upload.id)) == "NOT_FOUND"
        assert await reason(client.files.GetUpload(rpc.GetUploadRequest(upload_id=upload.id))) == "NOT_FOUND"

    async def test_duplicate_is_decided_at_the_end(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, duplicate_handling=SKIP)
        first = (await client.upload(folder.id, "a.bin", b"first")).file
        await write(client, upload.id, 0, CONTENT)
        done = await finish(client, upload.id)
        assert (done.file.id, done.outcome) == (first.id, rpc.UPLOAD_OUTCOME_SKIPPED)

    async def test_writers_at_once_store_each_byte_once(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id, sha256=HASH)
        calls = [write(client, upload.id, 0, CONTENT[:500], CONTENT[500:]) for _ in range(5)]
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert any(getattr(end, "received_bytes", 0) == len(CONTENT) for end in ends)
        assert (await finish(client, upload.id)).file.size_bytes == len(CONTENT)

    async def test_bad_requests(self, client: Files, folder: pb.Folder) -> None:
        upload = await start(client, folder.id)
        assert await reason(start(client, ABSENT_FOLDER)) == "NOT_FOUND"
        assert (await refused(start(client, folder.id, size_bytes=-1))).field == "header.size_bytes"
        assert (await refused(start(client, folder.id, size_bytes=1 << 60))).reason == "RESOURCE_EXHAUSTED"
        assert (await refused(write(client, "upload-1", 0, b"x"))).field == "upload_id"
        assert (await refused(write(client, upload.id, -1, b"x"))).field == "offset"
        assert await reason(write(client, new_id("upload"), 0, b"x")) == "NOT_FOUND"
        with as_principal(Principal(new_id("org"), new_id("user"))):
            assert await reason(write(client, upload.id, 0, b"x")) == "NOT_FOUND"


async def start(client: Files, folder_id: str, request_id: str = "", **header: Any) -> rpc.Upload:
    """A new upload."""
    described = rpc.UploadFileHeader(folder_id=folder_id, original_name="a.bin", **header)
    request = rpc.StartUploadRequest(request_id=request_id, header=described)
    return (await client.files.StartUpload(request)).upload  # type: ignore[no-any-return]


async def write(client: Files, upload_id: str, offset: int, *pieces: bytes) -> rpc.Upload:
    """An upload after data was appended, in one message per piece."""

    async def requests() -> AsyncIterator[rpc.WriteUploadRequest]:
        yield rpc.WriteUploadRequest(upload_id=upload_id, offset=offset, data=pieces[0])
        for piece in pieces[1:]:
            yield rpc.WriteUploadRequest(data=piece)

    return (await client.files.WriteUpload(requests())).upload  # type: ignore[no-any-return]


async def finish(client: Files, upload_id: str, request_id: str = "") -> rpc.FinishUploadResponse:
    """The end of an upload."""
    request = rpc.FinishUploadRequest(upload_id=upload_id, request_id=request_id)
    return await client.files.FinishUpload(request)  # type: ignore[no-any-return]
