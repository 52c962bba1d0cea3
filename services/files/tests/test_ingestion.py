"""Processing over a real archival service: changes, outages, huge files."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL, as_principal
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.failpoints import observed_by
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.suites.files.calls import REPLACE
from mnemesh_testkit.timeouts import scaled

from .leftovers import TEXT, assert_consistent, assert_nothing_left
from .service import Service, opened


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


@pytest.mark.parametrize("change", ["delete", "replace"])
@pytest.mark.parametrize(
    "moment",
    sampled(["call.before:InsertPassages", "call.after:InsertPassages", "sql.write.before:ingestion.complete"], 2),
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


async def test_two_huge_files_leave_a_worker_to_a_small_one(
    tmp_path: Path, archival: Any, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemesh_files.ingestion.SMALL_BYTES", 10_000)
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
