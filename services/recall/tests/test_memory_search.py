"""Search of facts: what is a hit, and what happens while the embedder is unreachable."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import SequentialIds, new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.errors import EmbedderUnavailable
from mnemesh_recall.model.episodes import Fact, FactFilter, MemorySearch, NewFact, Scope, ScopeKind
from mnemesh_recall.store.episodes import EpisodeStore
from mnemesh_recall.store.indexed import IndexedMemories
from mnemesh_recall.store.tables import index_tables
from mnemesh_recall.store.transaction import MEMORIES
from mnemesh_recall.usecases.episodes import MemoryFinder
from mnemesh_recall.vectors import MemorySource, MemoryVectors
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.embedders.built_in import HashingEmbedder
from mnemesh_retrieval.errors import EmbedderError, EmbedderRejected
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import SearchMode
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox

ORG = new_id("org")
CALLER = Principal(ORG, new_id("user"))
TEAM = Scope(ScopeKind.NAME, "team")


class Leaving(HashingEmbedder):
    """An embedder that can become unreachable, or refuse its key."""

    failure: EmbedderError | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if self.failure is not None:
            raise self.failure
        return await super().embed(texts)


@pytest_asyncio.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database.open(f"sqlite:///{tmp_path / 'recall.db'}")
    await database.migrate("mnemesh_recall")
    yield database
    await database.close()


def asked(mode: SearchMode) -> MemorySearch[Fact]:
    return MemorySearch(query="tortoise", mode=mode, limit=5, filter=FactFilter(scopes=(TEAM,)))


@pytest.mark.parametrize("failure", [EmbedderUnreachable("unreachable"), EmbedderRejected("answered 401")])
async def test_search_without_the_embedder_uses_full_text_and_is_degraded(
    database: Database, clock: FrozenClock, tmp_path: Path, failure: EmbedderError
) -> None:
    store = EpisodeStore(database, clock, SequentialIds())
    index, embedder = await FlatIndex.open(tmp_path / "index"), Leaving()
    indexer = Indexer(Outbox(database, index_tables, clock), index, clock)
    vectors = MemoryVectors(index, embedder, indexer)
    finder = MemoryFinder(store, vectors)
    await indexer.register(MEMORIES, MemorySource(IndexedMemories(database), vectors))
    await indexer.open()
    fact, _ = await store.create_fact(ORG, TEAM, NewFact(text="Keeps a tortoise"), None)
    embedder.failure = failure
    assert await indexer.catch_up() == 0
    with pytest.raises(EmbedderUnavailable):
        await finder.search(CALLER, asked(SearchMode.VECTOR))
    hybrid = await finder.search(CALLER, asked(SearchMode.HYBRID))
    assert ([found.id for found, _ in hybrid.hits], hybrid.degraded) == ([fact.id], True)
    embedder.failure = None
    indexer.retry()
    assert await indexer.catch_up() == 1
    nearest = await finder.search(CALLER, asked(SearchMode.VECTOR))
    assert ([found.id for found, _ in nearest.hits], nearest.degraded) == ([fact.id], False)
    await store.delete_fact(ORG, fact.id, None)
    # The index lags behind. A deleted fact is not a hit even before.
    assert not (await finder.search(CALLER, asked(SearchMode.VECTOR))).hits
    await index.close()


class Toned(HashingEmbedder):
    """Texts with "cat" or "feline" point one way, all others another way; the least similarity lies between them."""

    similarity_weight = 0.25
    least_similarity = 0.3

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [_toned(text, self.dimension) for text in texts]


def _toned(text: str, dimension: int) -> Vector:
    vector = np.zeros(dimension, np.float32)
    vector[:2] = (1.0, 0.1) if "cat" in text.lower() or "feline" in text else (0.1, 1.0)
    return vector


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("felines", ["Has two cats"]),
        ("has two CATS.", ["Has two cats", "Has two cats and two dogs, and has had two more of each"]),
        ("cats qwertyuiop", ["Has two cats", "Has two cats and two dogs, and has had two more of each"]),
    ],
)
async def test_a_fact_without_word_and_similarity_is_no_hit_and_an_equal_one_is_first(
    database: Database, clock: FrozenClock, tmp_path: Path, query: str, found: list[str]
) -> None:
    store = EpisodeStore(database, clock, SequentialIds())
    index = await FlatIndex.open(tmp_path / "index")
    indexer = Indexer(Outbox(database, index_tables, clock), index, clock)
    vectors = MemoryVectors(index, Toned(), indexer)
    await indexer.register(MEMORIES, MemorySource(IndexedMemories(database), vectors))
    await indexer.open()
    for text in ("Lives in Porto", "Has two cats", "Opens at nine"):
        await store.create_fact(ORG, TEAM, NewFact(text=text), None)
    if len(found) > 1:
        await store.create_fact(ORG, TEAM, NewFact(text=found[1]), None)
    await indexer.catch_up()
    search = MemorySearch(query=query, mode=SearchMode.HYBRID, limit=5, filter=FactFilter(scopes=(TEAM,)))
    hits = (await MemoryFinder(store, vectors).search(CALLER, search)).hits
    assert [fact.text for fact, _ in hits] == found
    await index.close()
