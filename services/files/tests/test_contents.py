"""Stored contents: deletion, uploads that are not finished, and a full disk."""

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import StorageFull
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.suites.files.calls import ERROR, REPLACE, SKIP, reason

from .leftovers import TEXT, assert_nothing_left
from .service import Service, opened


async def test_contents_of_deleted_and_refused_files_are_removed_at_once(service: Service) -> None:
    folder = await service.client.folder()
    file = (await service.client.upload(folder.id, content=b"first\n")).file
    assert (
        await reason(service.client.upload(folder.id, content=b"refused\n", duplicate_handling=ERROR))
        == "ALREADY_EXISTS"
    )
    await service.client.upload(folder.id, content=b"skipped\n", duplicate_handling=SKIP)
    await service.client.upload(folder.id, content=b"second\n", duplicate_handling=REPLACE)
    await service.work()
    assert [path.read_bytes() for path in service.blobs()] == [b"second\n"]
    await service.client.delete(file.id)
    await service.work()
    assert service.blobs() == []
    assert await service.count("blobs") == 0


@pytest.mark.parametrize("whole_folder", [False, True])
async def test_deleted_file_leaves_nothing(service: Service, whole_folder: bool) -> None:
    folder = await service.client.folder(chunk_size=64)
    file = (await service.client.upload(folder.id, content=TEXT)).file
    copy = (await service.client.upload(folder.id, "copy.txt", TEXT)).file
    await service.work()
    assert len(service.blobs()) == 1
    if whole_folder:
        await service.client.delete_folder(folder.id)
    else:
        await service.client.delete(file.id)
        await service.work(advance=7200)
        assert await service.client.content(copy.id) == TEXT
        await service.client.delete(copy.id)
    await service.work(advance=7200)
    await assert_nothing_left(service)
    if whole_folder:
        assert await reason(service.passages(folder.archive_id)) == "ARCHIVE_NOT_FOUND"
    else:
        assert await service.passages(folder.archive_id) == []


async def test_full_disk_is_reported_and_leaves_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await service.client.folder()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageFull):
            await service.client.upload(folder.id)
    assert service.blobs() == []
    assert await service.client.names() == []


async def test_files_of_an_organization_are_bounded_together(tmp_path: Path, archival: Any, clock: FrozenClock) -> None:
    async with opened(tmp_path, archival, clock, organization_mb=1) as service:
        folder = await service.client.folder()
        first = (await service.client.upload(folder.id, content=[bytes(700_000)])).file
        assert await reason(service.client.upload(folder.id, content=[b"x" * 400_000])) == "RESOURCE_EXHAUSTED"
        header = rpc.UploadFileHeader(folder_id=folder.id, original_name="b.bin")
        upload = (await service.client.files.StartUpload(rpc.StartUploadRequest(header=header))).upload

        async def data() -> AsyncIterator[rpc.WriteUploadRequest]:
            yield rpc.WriteUploadRequest(upload_id=upload.id, data=b"y" * 400_000)

        assert await reason(service.client.files.WriteUpload(data())) == "RESOURCE_EXHAUSTED"
        assert (await service.client.get_folder(folder.id)).size_bytes == 700_000
        with as_principal(Principal(new_id("org"), "user")):
            own = await service.client.folder()
            await service.client.upload(own.id, content=[b"x" * 400_000])
        await service.client.files.DeleteFile(rpc.DeleteFileRequest(file_id=first.id))
        await service.client.upload(folder.id, content=[b"x" * 400_000])


async def test_unfinished_uploads_are_bounded_and_expire(tmp_path: Path, archival: Any, clock: FrozenClock) -> None:
    async with opened(tmp_path, archival, clock, max_uploads=2, max_file_mb=1) as service:
        folder = await service.client.folder()
        header = rpc.UploadFileHeader(folder_id=folder.id, original_name="a.bin")
        start = rpc.StartUploadRequest(header=header)
        first = (await service.client.files.StartUpload(start)).upload
        await service.client.files.StartUpload(start)
        assert await reason(service.client.files.StartUpload(start)) == "RESOURCE_EXHAUSTED"
        with as_principal(Principal(new_id("org"), "user")):
            own = await service.client.folder()
            header = rpc.UploadFileHeader(folder_id=own.id, original_name="a.bin")
            await service.client.files.StartUpload(rpc.StartUploadRequest(header=header))

        async def data(size: int) -> AsyncIterator[rpc.WriteUploadRequest]:
            yield rpc.WriteUploadRequest(upload_id=first.id, data=bytes(1 << 10))
            for _ in range(size):
                yield rpc.WriteUploadRequest(data=bytes(1 << 20))

        assert await reason(service.client.files.WriteUpload(data(1))) == "RESOURCE_EXHAUSTED"
        assert await reason(service.client.upload(folder.id, content=[bytes(1 << 20)] * 2)) == "RESOURCE_EXHAUSTED"
        await service.client.files.WriteUpload(data(0))
        assert len(service.blobs()) == 1
        clock.advance(seconds=90_000)
        assert await reason(service.client.files.GetUpload(rpc.GetUploadRequest(upload_id=first.id))) == "NOT_FOUND"
        await service.client.files.StartUpload(start)
