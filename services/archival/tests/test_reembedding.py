"""An archive gets another embedder while it is in use: nobody notices but by the vectors."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive, Passage
from mnemesh.archival.v1.archives_service_pb2 import (
    DeleteArchiveRequest,
    GetArchiveRequest,
    ListArchivesRequest,
    UpdateArchiveRequest,
)
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
from mnemesh_archival.store.sql.reembeddings import SqlReembeddingStore
from mnemesh_archival.usecases.reembedding import ReembeddingWorker
from mnemesh_archival.vectors.embedders import Embedders
from mnemesh_kit.channels import Channels
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.filters import Match
from mnemesh_retrieval.index import Collection
from mnemesh_retrieval.registry import HASHING, WORDLLAMA, make_embedder

from .conftest import Room
from .test_crash import Process

MASK = FieldMask(paths=["embedder"])


def words(number: int) -> str:
    return f"oak number {number} stands in garden {number % 7}"


async def archive_of(room: Room, archive: str) -> Archive:
    got: Archive = (await room.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive
    return got


async def change(room: Room, archive: str, embedder: str) -> Archive:
    request = UpdateArchiveRequest(archive=Archive(id=archive, embedder=embedder), update_mask=MASK)
    changed: Archive = (await room.archives.UpdateArchive(request)).archive
    return changed


async def until_it_serves(room: Room, archive: str, embedder: str) -> Archive:
    async with asyncio.timeout(60):
        while True:
            found = await archive_of(room, archive)
            if found.embedder == embedder:
                return found
            await asyncio.sleep(0.01)


async def everything(room: Room, archive: str) -> dict[str, Passage]:
    request = ListPassagesRequest(page_size=1000, filter=PassageFilter(archive_id=archive), include_embedding=True)
    return {passage.text: passage for passage in (await room.passages.ListPassages(request)).passages}


async def require_vectors_of(passages: dict[str, Passage], handle: str) -> None:
    embedder = make_embedder(handle)
    texts = list(passages)
    for text, vector in zip(texts, await embedder.embed(texts), strict=True):
        assert list(passages[text].embedding) == pytest.approx(vector.tolist(), abs=1e-5), text
    await embedder.close()


async def points_left(room: Room, embedder: str, archive: str) -> int:
    """What the stopped room's index holds of the archive under an embedder."""
    index = await EdgeIndex.open(room.config.index_path)
    await index.ensure_collection(Collection(f"passages:{embedder}", dimension=256))
    count = await index.count(f"passages:{embedder}", Match("archive_id", archive))
    await index.close()
    return count


async def test_a_change_is_noticed_by_nobody(room: Room, agent: str) -> None:
    archive = await room.archive(agent)
    ids = [r.passage.id for r in (await room.insert(archive, *(words(n) for n in range(300)))).results]
    stopped = asyncio.Event()
    expected = {words(n) for n in range(300)}

    async def search() -> int:
        mine = PassageFilter(archive_id=archive)
        for turn in itertools.count():
            if stopped.is_set():
                return turn
            assert await room.texts("oak garden", filter=mine, limit=10)
            assert await room.texts("oak garden", filter=mine, mode=PASSAGE_SEARCH_MODE_VECTOR)
            listed = await room.passages.ListPassages(ListPassagesRequest(filter=mine, page_size=5))
            assert len(listed.passages) == 5
            got = await room.passages.GetPassage(GetPassageRequest(passage_id=ids[-1], include_embedding=True))
            assert len(got.passage.embedding) == 256
        raise AssertionError

    async def write() -> int:
        for turn in itertools.count():
            if stopped.is_set():
                return turn
            (made,) = (await room.insert(archive, f"late elm {turn}")).results
            expected.add(f"late elm {turn}")
            passage = Passage(id=ids[turn], text=f"was an oak {turn}")
            await room.passages.UpdatePassage(
                UpdatePassageRequest(passage=passage, update_mask=FieldMask(paths=["text"]))
            )
            expected.discard(words(turn))
            expected.add(f"was an oak {turn}")
            if turn % 3 == 0:
                await room.passages.DeletePassage(DeletePassageRequest(passage_id=made.passage.id))
                expected.discard(f"late elm {turn}")
        raise AssertionError

    tasks = [asyncio.create_task(search()), asyncio.create_task(write())]
    began = await change(room, archive, WORDLLAMA)
    assert (began.embedder, began.reembedding.target_embedder) == (HASHING, WORDLLAMA)
    assert began.reembedding.total_passages >= 300
    (listed,) = (await room.archives.ListArchives(ListArchivesRequest())).archives
    assert WORDLLAMA in {listed.embedder, listed.reembedding.target_embedder}
    ended = await until_it_serves(room, archive, WORDLLAMA)
    assert (ended.HasField("reembedding"), ended.dimension) == (False, 256)
    stopped.set()
    searched, written = await asyncio.wait_for(asyncio.gather(*tasks), 60)
    assert searched
    assert written
    found = await everything(room, archive)
    assert set(found) == expected
    assert (await room.summary(agent)).passage_count == len(expected)
    await require_vectors_of(found, WORDLLAMA)
    await room.stop()
    await room.start()
    assert set(await everything(room, archive)) == expected
    await room.stop()
    assert await points_left(room, HASHING, archive) == 0
    await room.start()


def stop_at(monkeypatch: pytest.MonkeyPatch, where: type, step: str, times: int) -> asyncio.Event:
    """Let a step hang for good at its nth time, as it does for whoever comes after a death."""
    reached = asyncio.Event()
    real: Callable[..., Awaitable[Any]] = getattr(where, step)
    left = itertools.count(times, -1)

    async def hang(*args: Any, **kwargs: Any) -> Any:
        if next(left) > 1:
            return await real(*args, **kwargs)
        reached.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(where, step, hang)
    return reached


@pytest.mark.parametrize(
    ("where", "step", "times"),
    [
        (ReembeddingWorker, "_copy", 2),
        (SqlReembeddingStore, "mark", 2),
        (SqlReembeddingStore, "switch", 1),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_change_goes_on_where_it_was_interrupted(
    room: Room, agent: str, where: type, step: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await room.archive(agent)
    ids = [r.passage.id for r in (await room.insert(archive, *(words(n) for n in range(200)))).results]
    with monkeypatch.context() as dying:
        reached = stop_at(dying, where, step, times)
        await change(room, archive, WORDLLAMA)
        await asyncio.wait_for(reached.wait(), 30)
        half = await archive_of(room, archive)
        assert half.embedder == HASHING
        # Deleted after the copy was made, and before anybody took note of it.
        for passage_id in ids[:100]:
            await room.passages.DeletePassage(DeletePassageRequest(passage_id=passage_id))
        assert len(await room.texts("oak garden", limit=50)) == 50
        await room.stop()
    embedded: list[str] = []
    embed = Embedders.embed

    async def counted(self: Embedders, handle: str, texts: list[str], **kwargs: Any) -> Any:
        if handle == WORDLLAMA:
            embedded.extend(texts)
        return await embed(self, handle, texts, **kwargs)

    monkeypatch.setattr(Embedders, "embed", counted)
    await room.start()
    await until_it_serves(room, archive, WORDLLAMA)
    found = await everything(room, archive)
    assert set(found) == {words(n) for n in range(100, 200)}
    await require_vectors_of(found, WORDLLAMA)
    assert len(embedded) <= 200 - half.reembedding.done_passages
    await room.stop()
    assert await points_left(room, WORDLLAMA, archive) == 100
    await room.start()


@pytest.mark.parametrize("dies", [False, True])
async def test_what_is_deleted_between_reading_and_copying_has_no_copy(
    room: Room, agent: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await room.archive(agent)
    (kept, gone) = (result.passage.id for result in (await room.insert(archive, "an oak", "an elm")).results)
    read, go_on = asyncio.Event(), asyncio.Event()
    embed = Embedders.embed

    async def slowly(self: Embedders, handle: str, texts: list[str], **kwargs: Any) -> Any:
        if handle == WORDLLAMA:
            read.set()
            await go_on.wait()
        return await embed(self, handle, texts, **kwargs)

    monkeypatch.setattr(Embedders, "embed", slowly)
    with monkeypatch.context() as dying:
        reached = stop_at(dying, SqlReembeddingStore, "mark", 1) if dies else None
        await change(room, archive, WORDLLAMA)
        await asyncio.wait_for(read.wait(), 30)
        await room.passages.DeletePassage(DeletePassageRequest(passage_id=gone))
        go_on.set()
        if reached is not None:
            await asyncio.wait_for(reached.wait(), 30)
            await room.stop()
    if dies:
        await room.start()
    await until_it_serves(room, archive, WORDLLAMA)
    assert await room.texts("oak elm") == ["an oak"]
    assert set(await everything(room, archive)) == {"an oak"}
    assert kept
    await room.stop()
    assert await points_left(room, WORDLLAMA, archive) == 1
    await room.start()


async def test_kill_9_in_between(tmp_path: Path) -> None:
    service, channels = Process(tmp_path), Channels(deadline=10)
    await service.start()

    def connect() -> Room:
        room = Room(config=None, channels=channels)  # type: ignore[arg-type]
        room.passages = PassageServiceStub(channels.channel(service.address))
        room.archives = ArchiveServiceStub(channels.channel(service.address))
        return room

    room = connect()
    archive = await room.archive()
    for start in range(0, 1500, 500):
        await room.insert(archive, *(words(n) for n in range(start, start + 500)))
    await change(room, archive, WORDLLAMA)
    while not (await archive_of(room, archive)).reembedding.done_passages > 0:
        await asyncio.sleep(0)
    await service.end(signal.SIGKILL)
    await service.start()
    room = connect()
    assert await room.texts("oak garden")
    await until_it_serves(room, archive, WORDLLAMA)
    request = SearchPassagesRequest(query="oak garden", mode=PASSAGE_SEARCH_MODE_VECTOR, limit=100)
    assert len((await room.passages.SearchPassages(request)).hits) == 100
    assert (await archive_of(room, archive)).passage_count == 1500
    await channels.close()
    assert await service.end(signal.SIGTERM) == 0


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Handles of embedders that do not answer."""
    handles: set[str] = set()
    embed = Embedders.embed

    async def ask(self: Embedders, handle: str, texts: list[str], **kwargs: Any) -> Any:
        if handle in handles:
            raise EmbedderUnavailable(handle, "nobody there")
        return await embed(self, handle, texts, **kwargs)

    monkeypatch.setattr(Embedders, "embed", ask)
    return handles


async def test_a_new_embedder_that_is_away_changes_nothing(room: Room, agent: str, away: set[str]) -> None:
    archive = await room.archive(agent)
    await room.insert(archive, "an oak")
    away.add(WORDLLAMA)
    await change(room, archive, WORDLLAMA)
    await room.insert(archive, "an elm")
    assert sorted(await room.texts("oak elm")) == ["an elm", "an oak"]
    found = await archive_of(room, archive)
    assert (found.embedder, found.reembedding.done_passages, found.reembedding.total_passages) == (HASHING, 0, 2)
    back = await change(room, archive, HASHING)
    assert (back.embedder, back.HasField("reembedding")) == (HASHING, False)
    away.clear()
    await room.insert(archive, "an ash")
    assert (await archive_of(room, archive)).embedder == HASHING
    assert len(await room.texts("oak elm ash")) == 3


async def test_an_archive_leaves_an_embedder_that_is_gone_for_good(room: Room, agent: str, away: set[str]) -> None:
    archive = await room.archive(agent)
    changed = await room.one(archive, "an oak")
    away |= {WORDLLAMA, HASHING}
    await change(room, archive, WORDLLAMA)
    await room.insert(archive, "an elm")
    await room.passages.UpdatePassage(
        UpdatePassageRequest(passage=Passage(id=changed, text="an ash"), update_mask=FieldMask(paths=["text"]))
    )
    assert sorted(await room.texts("ash elm")) == ["an ash", "an elm"]
    away.discard(WORDLLAMA)
    await until_it_serves(room, archive, WORDLLAMA)
    found = await everything(room, archive)
    assert set(found) == {"an ash", "an elm"}
    await require_vectors_of(found, WORDLLAMA)


async def test_an_archive_deleted_meanwhile_leaves_no_copies(
    room: Room, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = await room.archive(agent)
    await room.insert(archive, *(words(n) for n in range(100)))
    with monkeypatch.context() as dying:
        reached = stop_at(dying, SqlReembeddingStore, "mark", 2)
        await change(room, archive, WORDLLAMA)
        await asyncio.wait_for(reached.wait(), 30)
        await room.archives.DeleteArchive(DeleteArchiveRequest(archive_id=archive))
        await room.stop()
    await room.start()
    assert await room.texts("oak") == []
    await room.stop()
    assert [await points_left(room, handle, archive) for handle in (HASHING, WORDLLAMA)] == [0, 0]
    await room.start()


async def test_there_and_back_again(room: Room, agent: str) -> None:
    archive = await room.archive(agent)
    await room.insert(archive, "an oak")
    await change(room, archive, WORDLLAMA)
    await until_it_serves(room, archive, WORDLLAMA)
    back = await change(room, archive, HASHING)
    assert (back.embedder, back.reembedding.target_embedder) == (WORDLLAMA, HASHING)
    # What served before leaves first, when no call can be at it any more; a start is such a time.
    await room.stop()
    await room.start()
    await until_it_serves(room, archive, HASHING)
    await require_vectors_of(await everything(room, archive), HASHING)
