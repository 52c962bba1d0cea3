"""Searches by words in the record, for passages that the vector index does not have or cannot be asked for.

Texts are read in batches and compared one by one: about 20 ms for 1,000 passages, and 2 s for the largest scan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

from mnemesh_retrieval.index import WordMatch
from mnemesh_retrieval.words.sparse import WordQuery

from mnemesh_archival.model import ranking
from mnemesh_archival.store.base.passages import PassageScope, PassageStore

SCANNED: Final = 100_000
"""The number of newest passages that a search looks through."""
BATCH: Final = 500
BATCH_BYTES: Final = 2_000_000


class WordScan:
    """Scans of the record. One runs at a time, so that a rebuild of the index leaves time for other calls."""

    def __init__(self, passages: PassageStore) -> None:
        self._passages = passages
        self._scanning = asyncio.Lock()

    async def everything(self, scope: PassageScope, query: str, limit: int) -> list[WordMatch]:
        """Returns the best passages of a scope by their words, in no particular order."""
        async with self._scanning:
            sizes = await self._passages.newest_sizes(scope, SCANNED)
            return _best(await self._matches(query, _batches(sizes)), limit)

    async def among(self, scope: PassageScope, query: str, points: Sequence[UUID], limit: int) -> list[WordMatch]:
        """Returns the best of these passages by their words, without those that are not in the scope."""
        async with self._scanning:
            inside = await self._passages.matching(scope, points)
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
