"""An archive changes its embedder while it is in use; only the vectors change."""

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.archives_service_pb2 import DeleteArchiveRequest, ListArchivesRequest
from mnemesh.archival.v1.archives_service_pb2_grpc import ArchiveServiceStub
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_VECTOR,
    DeletePassageRequest,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
    SearchPassagesRequest,
    UpdatePassageRequest,
)
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_archival.errors import EmbedderUnavailable
from mnemesh_archival.maintenance import maintain
from mnemesh_archival.store.archives import ReembeddingStore
from mnemesh_archival.usecases import archives
from mnemesh_archival.vectors import Embedders, PassageIndex
from mnemesh_kit.channels import Channels
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.filters import Match
from mnemesh_retrieval.index import Collection
from mnemesh_retrieval.indexing import collections, indexer
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, make_embedder
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled

from .archival_process import Process
from .conftest import ArchivalServer
from .embedder_changes import archive_of, change, wait_until_serving


def words(number: int) -> str:
    return f"oak number {number} grows in garden {number % 7}"


async def everything(archival: ArchivalServer, archive: str) -> dict[str, Passage]:
    request = ListPassagesRequest(page_size=1000, filter=PassageFilter(archive_id=archive), include_embedding=True)
    return {passage.text: passage for passage in (await archival.passages.ListPassages(request)).passages}


async def require_vectors_of(passages: dict[str, Passage], handle: str) -> None:
    embedder = make_embedder(handle)
    texts = list(passages)
    for text, vector in zip(texts, await embedder.embed(texts), strict=True):
        assert list(passages[text].embedding) == pytest.approx(vector.tolist(), abs=1e-5), text
    await embedder.close()


async def points_left(archival: ArchivalServer, embedder: str, archive: str) -> int:
    """Returns the number of points of the archive in the collection of an embedder. The server must be stopped."""
    index = await EdgeIndex.open(archival.config.index_path)
    await index.ensure_collection(Collection(f"passages:{embedder}", dimension=256))
    count = await index.count(f"passages:{embedder}", Match("archive_id", archive))
    await index.close()
    return count


async def test_reads_and_writes_continue_during_a_change(archival: ArchivalServer, agent: str) -> None:
    archive = await archival.archive(agent)
    ids = [r.passage.id for r in (await archival.insert(archive, *(words(n) for n in range(300)))).results]
    stopped = asyncio.Event()
    expected = {words(n) for n in range(300)}

    async def search() -> int:
        mine = PassageFilter(archive_id=archive)
        for turn in itertools.count():
            if stopped.is_set():
                return turn
            assert await archival.texts("oak garden", filter=mine, limit=10)
            assert await archival.texts("oak garden", filter=mine, mode=PASSAGE_SEARCH_MODE_VECTOR)
            listed = await archival.passages.ListPassages(ListPassagesRequest(filter=mine, page_size=5))
            assert len(listed.passages) == 5
            got = await archival.passages.GetPassage(GetPassageRequest(passage_id=ids[-1], include_embedding=True))
            assert len(got.passage.embedding) == 256
        raise AssertionError

    async def write() -> int:
        for turn, passage_id in enumerate(ids):
            if stopped.is_set():
                return turn
            (created,) = (await archival.insert(archive, f"late elm {turn}")).results
            expected.add(f"late elm {turn}")
            passage = Passage(id=passage_id, text=f"was an oak {turn}")
            await archival.passages.UpdatePassage(
                UpdatePassageRequest(passage=passage, update_mask=FieldMask(paths=["text"]))
            )
            expected.discard(words(turn))
            expected.add(f"was an oak {turn}")
            if turn % 3 == 0:
                await archival.passages.DeletePassage(DeletePassageRequest(passage_id=created.passage.id))
                expected.discard(f"late elm {turn}")
        return len(ids)

    tasks = [asyncio.create_task(search()), asyncio.create_task(write())]
    began = await change(archival, archive, WORDLLAMA)
    assert (began.embedder, began.reembedding.target_embedder) == (HASHING, WORDLLAMA)
    assert began.reembedding.total_passages >= 300
    (listed,) = (await archival.archives.ListArchives(ListArchivesRequest())).archives
    assert WORDLLAMA in {listed.embedder, listed.reembedding.target_embedder}
    ended = await wait_until_serving(archival, archive, WORDLLAMA)
    assert (ended.HasField("reembedding"), ended.dimension) == (False, 256)
    stopped.set()
    searched, written = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert searched
    assert written
    found = await everything(archival, archive)
    assert set(found) == expected
    assert (await archival.summary(agent)).passage_count == len(expected)
    await require_vectors_of(found, WORDLLAMA)
    await archival.stop()
    await archival.start()
    assert set(await everything(archival, archive)) == expected
    await archival.stop()
    # The service keeps the old points for a while, for searches that began before. Maintenance leaves none.
    assert [line async for line in maintain(archival.config)]
    assert await points_left(archival, HASHING, archive) == 0
    assert await points_left(archival, WORDLLAMA, archive) == len(expected)
    await archival.start()


def hang_at(monkeypatch: pytest.MonkeyPatch, owner: type, step: str, times: int) -> asyncio.Event:
    """Makes the nth call of a step hang, as if the process had crashed there."""
    reached = asyncio.Event()
    real: Callable[..., Awaitable[Any]] = getattr(owner, step)
    left = itertools.count(times, -1)

    async def hang(*args: Any, **kwargs: Any) -> Any:
        if next(left) > 1:
            return await real(*args, **kwargs)
        reached.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(owner, step, hang)
    return reached


@pytest.mark.parametrize(
    ("step", "times"),
    [("begin_batch", 2), *(pytest.param(step, 1, marks=pytest.mark.full) for step in ("begin_batch", "switch"))],
)
async def test_interrupted_change_resumes(
    archival: ArchivalServer, agent: str, step: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await archival.archive(agent)
    ids = [r.passage.id for r in (await archival.insert(archive, *(words(n) for n in range(200)))).results]
    with monkeypatch.context() as patch:
        reached = hang_at(patch, ReembeddingStore, step, times)
        await change(archival, archive, WORDLLAMA)
        await asyncio.wait_for(reached.wait(), 30)
        half = await archive_of(archival, archive)
        assert half.embedder == HASHING
        # Deleted after they were copied and before the copies were recorded.
        for passage_id in ids[:100]:
            await archival.passages.DeletePassage(DeletePassageRequest(passage_id=passage_id))
        assert len(await archival.texts("oak garden", limit=50)) == 50
        await archival.stop()
    embedded: list[str] = []
    embed = Embedders.embed

    async def counted(self: Embedders, handle: str, texts: list[str], **kwargs: Any) -> Any:
        if handle == WORDLLAMA:
            embedded.extend(texts)
        return await embed(self, handle, texts, **kwargs)

    monkeypatch.setattr(Embedders, "embed", counted)
    await archival.start()
    await wait_until_serving(archival, archive, WORDLLAMA)
    found = await everything(archival, archive)
    assert set(found) == {words(n) for n in range(100, 200)}
    await require_vectors_of(found, WORDLLAMA)
    # Those that were copied and not deleted are not embedded again, but for the last batch.
    assert len(embedded) <= max(0, 100 - half.reembedding.done_passages) + 64
    await archival.stop()
    assert await points_left(archival, WORDLLAMA, archive) == 100
    await archival.start()


@pytest.mark.parametrize("crashes", sampled([True, False], 2))
async def test_passage_deleted_while_it_is_copied_leaves_no_copy(
    archival: ArchivalServer, agent: str, crashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await archival.archive(agent)
    (kept, deleted) = (result.passage.id for result in (await archival.insert(archive, "an oak", "an elm")).results)
    read, resume = asyncio.Event(), asyncio.Event()
    embed = Embedders.embed

    async def slowly(self: Embedders, handle: str, texts: list[str], **kwargs: Any) -> Any:
        if handle == WORDLLAMA:
            read.set()
            await resume.wait()
        return await embed(self, handle, texts, **kwargs)

    monkeypatch.setattr(Embedders, "embed", slowly)
    apply = PassageIndex.apply

    async def apply_briefly(self: PassageIndex, changes: Any, within: float | None = 0.05) -> bool:
        return await apply(self, changes, within)

    monkeypatch.setattr(PassageIndex, "apply", apply_briefly)
    with monkeypatch.context() as patch:
        reached = hang_at(patch, ReembeddingStore, "begin_batch", 2) if crashes else None
        await change(archival, archive, WORDLLAMA)
        await asyncio.wait_for(read.wait(), 30)
        await archival.passages.DeletePassage(DeletePassageRequest(passage_id=deleted))
        resume.set()
        if reached is not None:
            await asyncio.wait_for(reached.wait(), 30)
            await archival.stop()
    if crashes:
        await archival.start()
    await wait_until_serving(archival, archive, WORDLLAMA)
    assert await archival.texts("oak elm") == ["an oak"]
    assert set(await everything(archival, archive)) == {"an oak"}
    assert kept
    await archival.stop()
    assert [line async for line in maintain(archival.config)]
    assert await points_left(archival, WORDLLAMA, archive) == 1
    await archival.start()


@pytest.mark.full
async def test_sigkill_during_a_change(tmp_path: Path) -> None:
    service, channels = Process(tmp_path), Channels(deadline=scaled(10))
    await service.start()

    def connect() -> ArchivalServer:
        archival = ArchivalServer(config=None, channels=channels)  # type: ignore[arg-type]
        archival.passages = PassageServiceStub(channels.channel(service.address))
        archival.archives = ArchiveServiceStub(channels.channel(service.address))
        return archival

    archival = connect()
    archive = await archival.archive()
    for start in range(0, 1500, 500):
        await archival.insert(archive, *(words(n) for n in range(start, start + 500)))
    await change(archival, archive, WORDLLAMA)
    async with asyncio.timeout(scaled(60)):
        # A fast change can end before its progress is read.
        while (seen := await archive_of(archival, archive)).embedder == HASHING and not seen.reembedding.done_passages:
            await asyncio.sleep(0)
    await service.end(signal.SIGKILL)
    await service.start()
    archival = connect()
    assert await archival.texts("oak garden")
    await wait_until_serving(archival, archive, WORDLLAMA)
    request = SearchPassagesRequest(query="oak garden", mode=PASSAGE_SEARCH_MODE_VECTOR, limit=100)
    assert len((await archival.passages.SearchPassages(request)).hits) == 100
    assert (await archive_of(archival, archive)).passage_count == 1500
    await channels.close()
    assert await service.end(signal.SIGTERM) == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the service retry at once what failed."""
    monkeypatch.setattr(collections, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(indexer, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(archives, "RETRY_SECONDS", 0.02)


@pytest.fixture
def unavailable(impatient: None, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The handles of embedders that fail."""
    handles: set[str] = set()
    embed = Embedders.embed

    async def embed_or_fail(self: Embedders, handle: str, texts: list[str], **kwargs: Any) -> Any:
        if handle in handles:
            raise EmbedderUnavailable(handle, "connection refused")
        return await embed(self, handle, texts, **kwargs)

    monkeypatch.setattr(Embedders, "embed", embed_or_fail)
    return handles


async def test_unavailable_new_embedder_changes_nothing(
    archival: ArchivalServer, agent: str, unavailable: set[str]
) -> None:
    archive = await archival.archive(agent)
    await archival.insert(archive, "an oak")
    unavailable.add(WORDLLAMA)
    await change(archival, archive, WORDLLAMA)
    await archival.insert(archive, "an elm")
    assert sorted(await archival.texts("oak elm")) == ["an elm", "an oak"]
    found = await archive_of(archival, archive)
    assert (found.embedder, found.reembedding.done_passages, found.reembedding.total_passages) == (HASHING, 0, 2)
    back = await change(archival, archive, HASHING)
    assert (back.embedder, back.HasField("reembedding")) == (HASHING, False)
    unavailable.clear()
    await archival.insert(archive, "an ash")
    assert (await archive_of(archival, archive)).embedder == HASHING
    assert len(await archival.texts("oak elm ash")) == 3


async def test_archive_can_change_from_an_unavailable_embedder(
    archival: ArchivalServer, agent: str, unavailable: set[str]
) -> None:
    archive = await archival.archive(agent)
    changed = await archival.one(archive, "an oak")
    unavailable |= {WORDLLAMA, HASHING}
    await change(archival, archive, WORDLLAMA)
    await archival.insert(archive, "an elm")
    await archival.passages.UpdatePassage(
        UpdatePassageRequest(passage=Passage(id=changed, text="an ash"), update_mask=FieldMask(paths=["text"]))
    )
    assert sorted(await archival.texts("ash elm")) == ["an ash", "an elm"]
    unavailable.discard(WORDLLAMA)
    await wait_until_serving(archival, archive, WORDLLAMA)
    found = await everything(archival, archive)
    async with asyncio.timeout(scaled(60)):
        while not all(each.embedding for each in found.values()):
            await asyncio.sleep(0.01)
            found = await everything(archival, archive)
    assert set(found) == {"an ash", "an elm"}
    await require_vectors_of(found, WORDLLAMA)


async def test_archive_deleted_during_a_change_leaves_no_copies(
    archival: ArchivalServer, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await archival.archive(agent)
    await archival.insert(archive, *(words(n) for n in range(100)))
    with monkeypatch.context() as patch:
        reached = hang_at(patch, ReembeddingStore, "begin_batch", 2)
        await change(archival, archive, WORDLLAMA)
        await asyncio.wait_for(reached.wait(), 30)
        await archival.archives.DeleteArchive(DeleteArchiveRequest(archive_id=archive))
        await archival.stop()
    await archival.start()
    assert await archival.texts("oak") == []
    await archival.stop()
    assert [await points_left(archival, handle, archive) for handle in (HASHING, WORDLLAMA)] == [0, 0]
    await archival.start()


async def test_change_can_be_reverted(archival: ArchivalServer, agent: str) -> None:
    archive = await archival.archive(agent)
    await archival.insert(archive, "an oak")
    await change(archival, archive, WORDLLAMA)
    await wait_until_serving(archival, archive, WORDLLAMA)
    back = await change(archival, archive, HASHING)
    assert (back.embedder, back.reembedding.target_embedder) == (WORDLLAMA, HASHING)
    # The old points must be deleted first, which happens once no call can use them, for example at a start.
    await archival.stop()
    await archival.start()
    await wait_until_serving(archival, archive, HASHING)
    await require_vectors_of(await everything(archival, archive), HASHING)
