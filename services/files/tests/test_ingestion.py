"""Processing over a real archival service: crashes, changes, deletion, outages."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.clock import FrozenClock
from mnemesh_kit.errors import NotFound, StorageFull, Unavailable
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import DEFAULT_PRINCIPAL, Principal, as_principal
from mnemesh_testkit.suites.files.calls import ERROR, REPLACE, SKIP, reason
from mnemesh_testkit.timeouts import scaled

from .service import Service, archival_service, opened

_WORDS = "river stone letter window garden morning engine paper silver market winter signal harbour".split()  # noqa: SIM905
PARAGRAPHS = [
    f"Section {number}\n\n"
    + " ".join(
        f"The {_WORDS[(number * 5 + each) % 13]} of {_WORDS[(number + each * 3) % 13]} {number * 31 + each} is "
        f"{(number * 37 + each * 101) % 997}."
        for each in range(12)
    )
    for number in range(12)
]
TEXT = "\n\n".join(PARAGRAPHS).encode()


class Crash(BaseException):
    """The end of a process."""


@pytest_asyncio.fixture
async def archival(tmp_path: Path) -> AsyncIterator[Any]:
    """A channel to archival."""
    async with archival_service(tmp_path / "archival") as channel:
        yield channel


@pytest.fixture
def clock() -> FrozenClock:
    """The clock of the service."""
    return FrozenClock()


@pytest_asyncio.fixture
async def service(tmp_path: Path, archival: Any, clock: FrozenClock) -> AsyncIterator[Service]:
    """The service."""
    async with opened(tmp_path, archival, clock) as service:
        yield service


async def test_changed_file_embeds_only_what_changed(service: Service) -> None:
    folder = await service.client.folder(chunk_size=64)
    file = (await service.client.upload(folder.id, content=TEXT)).file
    await service.work()
    all_passages = service.archival.embedded
    assert all_passages > 20
    changed = TEXT.replace(b"Section 5", b"Section five")
    await service.client.upload(folder.id, content=b"A new first line.\n\n" + changed, duplicate_handling=REPLACE)
    await service.work(advance=300)
    done = await service.client.file(file.id)
    assert done.status == pb.FILE_STATUS_COMPLETED
    assert 0 < service.archival.embedded - all_passages < all_passages / 3
    await assert_consistent(service, folder)
    assert any("Section five" in text for text in await service.passages(folder.archive_id))
    assert not any("Section 5" in text for text in await service.passages(folder.archive_id))


async def test_processing_again_uses_the_old_text_and_embeds_nothing(service: Service) -> None:
    folder = await service.client.folder(chunk_size=64)
    file = (await service.client.upload(folder.id, content=TEXT)).file
    await service.work()
    before, texts = service.archival.embedded, await service.passages(folder.archive_id)
    await service.client.files.RetryFile(rpc.RetryFileRequest(file_id=file.id))
    text = await service.client.files.GetFileText(rpc.GetFileTextRequest(file_id=file.id))
    assert text.text.encode() == TEXT
    await service.work()
    assert (await service.client.file(file.id)).status == pb.FILE_STATUS_COMPLETED
    assert service.archival.embedded == before
    assert await service.passages(folder.archive_id) == texts
    await assert_consistent(service, folder)


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


async def test_every_crash_is_survived(tmp_path: Path, archival: Any, request: pytest.FixtureRequest) -> None:
    """A crash at each failpoint of processing: the next process completes the file, with each passage once."""
    reached = await failpoints(tmp_path, archival, _process)
    every = 1 if request.config.getoption("--full") else 3
    for index in range(0, len(reached), every):
        await crash(tmp_path / f"processing-{index}", archival, index, _process, survived)


async def test_every_crash_of_a_deletion_is_survived(
    tmp_path: Path, archival: Any, request: pytest.FixtureRequest
) -> None:
    reached = await failpoints(tmp_path, archival, _process_and_delete)
    first = next(index for index, name in enumerate(reached) if "delete" in name)
    every = 1 if request.config.getoption("--full") else 3
    for index in range(first, len(reached), every):
        await crash(tmp_path / f"deletion-{index}", archival, index, _process_and_delete, removed)


@pytest.mark.parametrize("change", ["delete", "replace"])
@pytest.mark.parametrize(
    "moment", ["call.before:InsertPassages", "call.after:InsertPassages", "sql.write.before:ingestion.complete"]
)
async def test_change_during_processing_leaves_no_passages(service: Service, change: str, moment: str) -> None:
    folder = await service.client.folder(chunk_size=64)
    file = (await service.client.upload(folder.id, content=TEXT)).file
    changed = False

    async def interfere(name: str) -> None:
        nonlocal changed
        if name == moment and not changed:
            changed = True
            with as_principal(DEFAULT_PRINCIPAL):
                if change == "delete":
                    await service.client.delete(file.id)
                else:
                    await service.client.upload(folder.id, content=b"quite another text", duplicate_handling=REPLACE)

    with observed_by(interfere):
        await service.worker.run_due()
    assert changed
    for _ in range(3):
        await service.work(advance=300)
    if change == "replace":
        assert await service.passages(folder.archive_id) == ["quite another text"]
        await assert_consistent(service, folder)
    else:
        await service.work(advance=7200)
        assert await service.passages(folder.archive_id) == []
        await assert_nothing_left(service)


async def test_outage_of_archival_is_waited_for(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await service.client.folder()
    file = (await service.client.upload(folder.id, content=TEXT)).file
    insert = service.archival.insert_passages

    async def away(*_: Any) -> None:
        raise Unavailable("archival is away")

    monkeypatch.setattr(service.archival, "insert_passages", away)
    for _ in range(8):
        await service.work(advance=10)
    assert (await service.client.file(file.id)).status == pb.FILE_STATUS_EMBEDDING
    monkeypatch.setattr(service.archival, "insert_passages", insert)
    await service.work(advance=10)
    assert (await service.client.file(file.id)).status == pb.FILE_STATUS_COMPLETED


async def test_file_that_ends_the_process_each_time_fails_at_last(
    tmp_path: Path, archival: Any, clock: FrozenClock
) -> None:
    file_id = ""
    for attempt in range(8):
        async with opened(tmp_path, archival, clock) as service:
            if not file_id:
                folder = await service.client.folder()
                file_id = (await service.client.upload(folder.id)).file.id

            def crash_(name: str) -> None:
                if name == "sql.write.before:ingestion.add_text":
                    raise Crash

            with suppress(Crash), observed_by(crash_):
                await service.work(advance=120)
            if (file := await service.client.file(file_id)).status == pb.FILE_STATUS_ERROR:
                assert "interrupted 5 times" in file.error_message
                assert attempt == 5
                return
    raise AssertionError("the file never fails")


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


async def test_folder_whose_creation_was_cut_off_leaves_no_archive(
    tmp_path: Path, archival: Any, clock: FrozenClock
) -> None:
    """A crash after the archive was created and before the folder was."""
    created: list[str] = []

    async with opened(tmp_path, archival, clock) as service:

        def crash_(name: str) -> None:
            created.append(name)
            if name == "call.after:CreateArchive":
                raise Crash

        with suppress(Crash), observed_by(crash_):
            await service.client.folder()
        assert "call.after:CreateArchive" in created
        assert await service.count("folders") == 0
        removed_archives = service.remover.removed
        await service.work()
        assert removed_archives.value("archive") == 0
        await service.work(advance=601)
        assert removed_archives.value("archive") == 1
        assert (await service.client.folder()).name == "reports"


Scenario = Callable[[Service], Awaitable[pb.Folder]]


async def _process(service: Service) -> pb.Folder:
    folder = await service.client.folder(request_id="folder", chunk_size=64)
    with suppress(NotFound):  # it is deleted already
        await service.client.upload(folder.id, content=TEXT, request_id="upload")
    await service.worker.run_due()
    return folder


async def _process_and_delete(service: Service) -> pb.Folder:
    folder = await _process(service)
    for file in (await service.client.files.ListFiles(rpc.ListFilesRequest())).files:
        await service.client.delete(file.id)
    await service.remover.run_due()
    return folder


async def survived(service: Service, folder: pb.Folder) -> None:
    """Fails unless the file is complete."""
    (file,) = (await service.client.files.ListFiles(rpc.ListFilesRequest())).files
    assert file.status == pb.FILE_STATUS_COMPLETED
    await assert_consistent(service, folder)


async def removed(service: Service, folder: pb.Folder) -> None:
    """Fails unless nothing is left of the file."""
    assert await service.passages(folder.archive_id) == []
    await assert_nothing_left(service)


async def failpoints(directory: Path, archival: Any, scenario: Scenario) -> list[str]:
    """Returns the failpoints that a scenario reaches without a crash."""
    reached: list[str] = []
    for name in ("first", "second"):  # archival opens with the first
        reached.clear()
        with as_principal(Principal(new_id("org"), "user")):
            async with opened(directory / name, archival, FrozenClock()) as service:
                with observed_by(reached.append):
                    await scenario(service)
    return reached


async def crash(
    directory: Path,
    archival: Any,
    index: int,
    scenario: Scenario,
    check: Callable[[Service, pb.Folder], Awaitable[None]],
) -> None:
    """Ends a process at a failpoint, starts another, and repeats the scenario."""
    clock, count = FrozenClock(), 0

    def observer(_: str) -> None:
        nonlocal count
        count += 1
        if count > index:
            raise Crash

    with as_principal(Principal(new_id("org"), "user")):
        async with opened(directory, archival, clock) as service:
            with suppress(Crash), observed_by(observer):
                await scenario(service)
        assert count > index
        async with opened(directory, archival, clock) as service:
            clock.advance(seconds=700)
            folder = await scenario(service)
            for _ in range(3):
                await service.work(advance=4000)
            await check(service, folder)


async def assert_consistent(service: Service, folder: pb.Folder) -> None:
    """Fails unless the archive has each passage of the files once, and nothing else is left."""
    texts = await service.passages(folder.archive_id)
    assert len(texts) == len(set(texts)) == await service.count("file_passages WHERE embedded = 1")
    assert await service.count("file_passages WHERE embedded = 0") == 0
    listed = (await service.client.files.ListFiles(rpc.ListFilesRequest())).files
    assert sum(file.total_chunks for file in listed) == len(texts)
    assert {file.chunks_embedded for file in listed} == {file.total_chunks for file in listed}
    assert await service.count("(SELECT DISTINCT text_id FROM segments)") == len(listed)
    await service.work(advance=7200)
    assert len(service.blobs()) == len(listed)
    assert await service.count("removals") == 0


async def assert_nothing_left(service: Service) -> None:
    """Fails if something of deleted files is left."""
    for table in ("file_passages", "segments", "blobs", "removals"):
        assert await service.count(table) == 0, table
    assert service.blobs() == []


async def test_two_huge_files_leave_a_worker_to_a_small_one(
    tmp_path: Path, archival: Any, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemesh_files.ingestion.worker.SMALL_BYTES", 10_000)
    async with opened(tmp_path, archival, clock, workers=2) as service:
        folder = await service.client.folder()
        huge = b"A line of a long text that never ends.\n" * 500
        large = [(await service.client.upload(folder.id, name, content=huge)).file for name in ("a.txt", "b.txt")]
        small = (await service.client.upload(folder.id, "c.txt", content=b"Short.")).file
        blocked, released = asyncio.Event(), asyncio.Event()
        insert = service.archival.insert_passages

        async def held(request_id: str, archive_id: str, folder_id: str, file: tuple[str, str], passages: Any) -> None:
            if file[0] != small.id:
                blocked.set()
                await released.wait()
            await insert(request_id, archive_id, folder_id, file, passages)

        service.archival.insert_passages = held  # type: ignore[method-assign]
        running = asyncio.create_task(service.worker.run())
        try:
            async with asyncio.timeout(scaled(60)):
                await blocked.wait()
                while (await service.client.file(small.id)).status != pb.FILE_STATUS_COMPLETED:
                    await asyncio.sleep(0.01)
            done = [(await service.client.file(each.id)).status for each in large]
            assert pb.FILE_STATUS_COMPLETED not in done
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_what_a_killed_process_had_not_joined_is_removed_at_the_next_start(
    tmp_path: Path, archival: Any, clock: FrozenClock
) -> None:
    async with opened(tmp_path, archival, clock) as service:
        folder = await service.client.folder()
        await service.client.upload(folder.id, content=b"kept")
        left = service.config.blobs_path / "unfinished" / "blob-of-a-killed-process"
        left.write_bytes(b"half of it")
    async with opened(tmp_path, archival, clock) as service:
        assert not left.exists()
        assert len(service.blobs()) == 1
