"""The end of the process at each point of processing, of a deletion and of the creation of a folder."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.plugin import Sample

from .leftovers import TEXT, assert_consistent, assert_nothing_left
from .service import Service, opened


class Crash(BaseException):
    """The end of a process."""


Scenario = Callable[[Service], Awaitable[pb.Folder]]


async def test_every_crash_is_survived(tmp_path: Path, archival: Any, sample: Sample, is_sweep: bool) -> None:
    """A crash at each failpoint of processing: the next process completes the file, with each passage once."""
    reached = await failpoints(tmp_path, archival, _process)
    for index in sample(moments(reached, every=is_sweep), 8):
        await crash(tmp_path / f"processing-{index}", archival, index, _process, survived)


async def test_every_crash_of_a_deletion_is_survived(
    tmp_path: Path, archival: Any, sample: Sample, is_sweep: bool
) -> None:
    reached = await failpoints(tmp_path, archival, _process_and_delete)
    first = next(index for index, name in enumerate(reached) if "delete" in name)
    for index in sample([index for index in moments(reached, every=is_sweep) if index >= first], 8):
        await crash(tmp_path / f"deletion-{index}", archival, index, _process_and_delete, removed)


def moments(reached: Sequence[str], *, every: bool) -> list[int]:
    """Returns the numbers of the failpoints; without `every`, of those that are not the same as the next one.

    Before a transaction begins or reads, a crash leaves the same behind as while it is open.
    """
    same = ("sql.write.before:", "sql.read.")
    return [index for index, name in enumerate(reached) if every or not name.startswith(same)]


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
