"""A lost, damaged or outdated vector index loses no passage: full-text search works at once, vectors once rebuilt."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Passage
from mnemesh.archival.v1.passages_service_pb2 import (
    PASSAGE_SEARCH_MODE_HYBRID,
    PASSAGE_SEARCH_MODE_TEXT,
    PASSAGE_SEARCH_MODE_VECTOR,
    TAG_MATCH_ALL,
    DeletePassageRequest,
    GetPassageRequest,
    ListPassagesRequest,
    PassageFilter,
    SearchPassagesRequest,
    SearchPassagesResponse,
    UpdatePassageRequest,
)
from mnemesh_archival.config import Config
from mnemesh_kit.ids import new_id
from mnemesh_retrieval.indexing import indexer, walks
from mnemesh_testkit.fakes.qdrant import fake_qdrant
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer
from .index_damage import damage, lose

TREES = ("an old oak", "a young elm", "an ash", "the oldest of the oaks", "birches in a row")
MODES = (PASSAGE_SEARCH_MODE_HYBRID, PASSAGE_SEARCH_MODE_TEXT)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite only: the index does not depend on the database."""
    return f"sqlite:///{tmp_path / 'archival.db'}"


async def found(archival: ArchivalServer, query: str, mode: int, **which: Any) -> SearchPassagesResponse:
    request = SearchPassagesRequest(query=query, limit=100, filter=PassageFilter(**which))
    request.mode = mode  # type: ignore[assignment]
    answer: SearchPassagesResponse = await archival.passages.SearchPassages(request)
    return answer


async def rebuilt(archival: ArchivalServer) -> None:
    """Waits until the index is complete."""
    async with asyncio.timeout(scaled(60)):
        while (await found(archival, "tree", PASSAGE_SEARCH_MODE_TEXT)).degraded:
            await asyncio.sleep(0.01)


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Rebuilds and background updates of the index wait for this event."""
    may_go_on = asyncio.Event()
    check, catch_up = walks.Walks.check_all, indexer.Indexer.catch_up

    async def check_later(self: Any) -> None:
        await may_go_on.wait()
        await check(self)

    async def catch_up_later(self: Any) -> int:
        return await catch_up(self) if may_go_on.is_set() else 0

    monkeypatch.setattr(walks.Walks, "check_all", check_later)
    monkeypatch.setattr(indexer.Indexer, "catch_up", catch_up_later)
    return may_go_on


@pytest.mark.parametrize("spoil", sampled([lose, damage], 2))
async def test_no_passage_is_lost_with_the_index(
    archival: ArchivalServer, agent: str, spoil: Callable[[Path], None], held_back: asyncio.Event
) -> None:
    held_back.set()
    (first, second, *_) = (
        await archival.insert(agent, *(Passage(text=text, tags=["tree"]) for text in TREES), request_id="r1")
    ).results
    change = Passage(id=second.passage.id, text="a young larch", tags=["tree", "needles"])
    await archival.passages.UpdatePassage(
        UpdatePassageRequest(passage=change, update_mask=FieldMask(paths=["text", "tags"]))
    )
    await archival.passages.DeletePassage(DeletePassageRequest(passage_id=first.passage.id))
    await archival.stop()
    spoil(archival.config.index_path)
    held_back.clear()
    await archival.start()

    left = sorted(["a young larch", *TREES[2:]])
    mine = PassageFilter(agent_id=agent)
    listed = await archival.passages.ListPassages(ListPassagesRequest(filter=mine))
    assert sorted(passage.text for passage in listed.passages) == left
    for mode in MODES:
        answer = await found(archival, "oaks", mode, agent_id=agent)
        assert (answer.hits[0].passage.text, answer.degraded) == ("the oldest of the oaks", True)
        assert "an old oak" not in [hit.passage.text for hit in answer.hits]
    needles = await found(archival, "young", MODES[1], tags=["tree", "needles"], tag_match=TAG_MATCH_ALL)
    assert [hit.passage.text for hit in needles.hits] == ["a young larch"]
    assert await archival.texts("elm", mode=PASSAGE_SEARCH_MODE_TEXT) == []
    again = await archival.insert(agent, *(Passage(text=text, tags=["tree"]) for text in TREES), request_id="r1")
    assert [result.passage.text for result in again.results] == ["", "a young larch", *TREES[2:]]
    await archival.insert(agent, "a pine that was planted meanwhile")
    assert (await archival.texts("pine", mode=PASSAGE_SEARCH_MODE_TEXT))[0] == "a pine that was planted meanwhile"

    held_back.set()
    await rebuilt(archival)
    by_vector = await found(archival, "larch pine ash birches oaks", PASSAGE_SEARCH_MODE_VECTOR)
    assert sorted(hit.passage.text for hit in by_vector.hits) == sorted([*left, "a pine that was planted meanwhile"])
    seen = await archival.passages.GetPassage(GetPassageRequest(passage_id=second.passage.id, include_embedding=True))
    assert seen.passage.embedding
    assert (await archival.summary(agent)).passage_count == 5


async def test_index_ahead_of_the_records_returns_only_recorded_passages(
    archival: ArchivalServer, agent: str, tmp_path: Path
) -> None:
    kept = await archival.one(agent, "an old oak")
    await archival.stop()
    shutil.copy(tmp_path / "archival.db", tmp_path / "backup")
    await archival.start()
    await archival.insert(agent, "an oak of later")
    change = UpdatePassageRequest(passage=Passage(id=kept, text="felled"), update_mask=FieldMask(paths=["text"]))
    await archival.passages.UpdatePassage(change)
    await archival.stop()
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"archival.db{ending}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup", tmp_path / "archival.db")
    await archival.start()
    for mode in (*MODES, PASSAGE_SEARCH_MODE_VECTOR):
        assert set(await archival.texts("oak felled", mode=mode)) <= {"an old oak"}
    assert (await archival.summary(agent)).passage_count == 1


async def test_index_behind_the_records_is_updated(archival: ArchivalServer, agent: str, tmp_path: Path) -> None:
    await archival.insert(agent, "an old oak")
    await archival.stop()
    shutil.copytree(archival.config.index_path, tmp_path / "backup")
    await archival.start()
    await archival.insert(agent, "an oak of later")
    await archival.stop()
    shutil.rmtree(archival.config.index_path)
    shutil.copytree(tmp_path / "backup", archival.config.index_path)
    await archival.start()
    expected = ["an oak of later", "an old oak"]
    assert sorted(await archival.texts("oaks", mode=PASSAGE_SEARCH_MODE_TEXT)) == expected
    await rebuilt(archival)
    assert sorted(await archival.texts("an oak", mode=PASSAGE_SEARCH_MODE_VECTOR)) == expected


@pytest.fixture
async def on_server(tmp_path: Path, database_url: str) -> AsyncIterator[ArchivalServer]:
    """An archival server whose index is on a fake Qdrant server; `start` again finds an empty one."""
    async with fake_qdrant() as first, fake_qdrant() as second:
        settings: dict[str, Any] = {"qdrant_url": "http://127.0.0.1:6333", "embedder": "mnemesh/hashing-256"}
        configs = [
            Config(port=0, data_dir=str(tmp_path), database_url=database_url, qdrant_grpc_port=each.port, **settings)
            for each in (first, second)
        ]
        archival = ArchivalServer(configs[0])
        await archival.start()
        archival.config = configs[1]
        yield archival
        await archival.channels.close()
        await archival.stop()


async def test_no_passage_is_lost_with_a_qdrant_server(on_server: ArchivalServer) -> None:
    agent = new_id("agent")
    await on_server.insert(agent, *TREES)
    await on_server.stop()
    await on_server.start()
    assert (await on_server.texts("oaks", mode=PASSAGE_SEARCH_MODE_TEXT))[0] == "an old oak"
    await rebuilt(on_server)
    every_word = " ".join(TREES)
    assert len(await on_server.texts(every_word, mode=PASSAGE_SEARCH_MODE_VECTOR)) == len(TREES)
