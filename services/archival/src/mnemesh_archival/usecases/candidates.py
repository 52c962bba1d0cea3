"""The candidates of a search: from the index, and from the record where the index is behind or incomplete."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from mnemesh_retrieval.embedder import Vector, averages_words
from mnemesh_retrieval.index import Candidates, SearchMode, WordMatch
from mnemesh_retrieval.words.sparse import WordQuery

from mnemesh_archival.errors import EmbedderUnavailable, EmbedderUnknown, VectorIndexUnavailable
from mnemesh_archival.model import ranking
from mnemesh_archival.store.passages import PassageStore
from mnemesh_archival.store.values import PassageScope
from mnemesh_archival.vectors import Embedders, PassageIndex

SCANNED: Final = 100_000
"""The number of newest passages that a search looks through."""
BATCH: Final = 500
BATCH_BYTES: Final = 2_000_000


class WordScan:
    """Scans of the record. One runs at a time, so that a rebuild of the index leaves time for other calls."""

    def __init__(self, passages: PassageStore) -> None:
        self._passages = passages
        self._scanning = asyncio.Lock()

    async def scan(self, scope: PassageScope, query: str, limit: int) -> list[WordMatch]:
        """Returns the best passages of a scope by their words, in no particular order."""
        async with self._scanning:
            sizes = await self._passages.newest_sizes(scope, SCANNED)
            return _best(await self._matches(query, _batches(sizes)), limit)

    async def among(self, scope: PassageScope, query: str, points: Sequence[UUID], limit: int) -> list[WordMatch]:
        """Returns the best of these passages by their words, without those that are not in the scope."""
        async with self._scanning:
            inside = await self._passages.match(scope, points)
            found = [str(point) for point in points if point in inside]
            batches = (found[start : start + BATCH] for start in range(0, len(found), BATCH))
            return _best(await self._matches(query, batches), limit)

    async def _matches(self, query: str, batches: Iterable[Sequence[str]]) -> list[WordMatch]:
        words = WordQuery(query)
        found: list[WordMatch] = []
        for batch in batches:
            texts = await self._passages.texts(batch)
            found += [match for point, text in texts if (match := words.match(point, text)) is not None]
            await asyncio.sleep(0)
        return found


def _best(matches: Sequence[WordMatch], limit: int) -> list[WordMatch]:
    best = set(ranking.best_by_own_words(matches, ranking.word_rarities(matches, len(matches)), limit))
    return [match for match in matches if match.id in best]


def _batches(sizes: Iterable[tuple[str, int]]) -> Iterator[list[str]]:
    batch: list[str] = []
    total = 0
    for point, size in sizes:
        if batch and (total + size > BATCH_BYTES or len(batch) == BATCH):
            yield batch
            batch, total = [], 0
        batch.append(point)
        total += size
    if batch:
        yield batch


EMBEDDER_SECONDS = 2.0
"""How long a search waits for an embedder before it continues with words only."""


@dataclass(frozen=True, slots=True)
class EmbedderGroup:
    """The archives in scope that share an embedder."""

    scope: PassageScope
    embedder: str
    size: int
    """The number of passages in these archives."""
    dimension: int


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates of one query in one group."""

    group: EmbedderGroup
    words: Sequence[WordMatch] = ()
    dense: Sequence[tuple[UUID, float]] = ()
    """Best first."""
    vector: Vector | None = None
    """The vector of the query; None if it was not embedded."""
    outdated: frozenset[UUID] = field(default_factory=frozenset)
    """Passages whose points may have earlier texts."""
    degraded: bool = False


class CandidateFinder:
    """Finds candidates by words and by similarity."""

    def __init__(self, passages: PassageStore, index: PassageIndex, embedders: Embedders) -> None:
        self._index = index
        self._embedders = embedders
        self._scan = WordScan(passages)

    async def embed(
        self, group: EmbedderGroup, queries: Sequence[str], kind: SearchMode
    ) -> tuple[Sequence[Vector | None], bool]:
        """Returns the vectors of queries, and whether the embedder could not be used.

        Raises:
            EmbedderUnavailable, EmbedderUnknown: the embedder cannot be used, and a VECTOR search needs it.
        """
        if kind is SearchMode.TEXT:
            return [None] * len(queries), False
        try:
            return await self._embedders.embed(group.embedder, queries, within=EMBEDDER_SECONDS), False
        except (EmbedderUnavailable, EmbedderUnknown):
            if kind is SearchMode.VECTOR:
                raise
            return [None] * len(queries), True

    async def find(
        self, group: EmbedderGroup, query: str, kind: SearchMode, vector: Vector | None, count: int
    ) -> Found:
        """Returns up to `count` candidates by words and as many by similarity.

        Raises:
            VectorIndexUnavailable, EmbedderUnknown: the index cannot be used, and a VECTOR search needs it.
        """
        behind = await self._index.behind(group.embedder, SCANNED)
        try:
            mode = kind if behind is not None else SearchMode.VECTOR
            found = Candidates()
            if mode is not SearchMode.VECTOR or vector is not None:
                found = await self._index.candidates(group.scope, mode=mode, text=query, vector=vector, limit=count)
        except (VectorIndexUnavailable, EmbedderUnknown):
            if kind is SearchMode.VECTOR:
                raise
            found, behind = Candidates(), None
        if behind is not None and not behind:
            return Found(group, found.text, found.dense, vector)
        outdated = frozenset(behind or ())
        dense = [(point, score) for point, score in found.dense if point not in outdated]
        if kind is SearchMode.VECTOR:
            return Found(group, (), dense, vector, outdated, degraded=True)
        words = [match for match in found.text if match.id not in outdated]
        if behind is None:
            words = await self._scan.scan(group.scope, query, count)
        else:
            words += await self._scan.among(group.scope, query, behind, count)
        return Found(group, words, dense, vector, outdated, degraded=True)

    async def similar_to(self, found: Found, text: str, count: int) -> Found:
        """Returns candidates with those by similarity to another text; as they are if the index cannot be used now."""
        (vector,) = await self._embedders.embed(found.group.embedder, [text])
        try:
            similar = await self._index.candidates(
                found.group.scope, mode=SearchMode.VECTOR, text="", vector=vector, limit=count
            )
        except VectorIndexUnavailable:
            return found
        dense = [(point, score) for point, score in similar.dense if point not in found.outdated]
        return replace(found, dense=dense, vector=vector)

    def averages_words(self, found: Found) -> bool:
        """Returns whether the query was embedded for these candidates, and its vector is an average of words."""
        return found.vector is not None and averages_words(self._embedders.get(found.group.embedder))

    async def similarities(self, found: Found, points: Sequence[UUID]) -> dict[UUID, float]:
        """Returns the similarities of the candidates, and of further passages that the index has."""
        known = dict(found.dense)
        if found.vector is not None:
            further = [point for point in points if point not in known and point not in found.outdated]
            known |= await self._index.similarities(found.group.scope, found.vector, further)
        return known
