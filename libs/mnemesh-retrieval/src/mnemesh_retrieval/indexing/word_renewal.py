"""Replaces the words of points after a change of the word analysis. Their vectors stay: nothing is embedded again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from mnemesh_retrieval.index import NearestIndex, Point, VectorIndex, WriteMode
from mnemesh_retrieval.indexing.busy import Busy
from mnemesh_retrieval.indexing.ports import Outbox, Source

BATCH: Final = 128
"""The records that are read and written together. Their changes wait meanwhile."""


class WordRenewal:
    """Knows which collections have the words of the current analysis, and renews the words of others.

    The version of a collection's words is stored with the records.
    """

    def __init__(self, outbox: Outbox, index: NearestIndex, busy: Busy) -> None:
        self._outbox = outbox
        self._index = index
        self._busy = busy

    async def is_current(self, key: str, source: Source, *, is_empty: bool = False) -> bool:
        """Returns whether the points of a collection have current words. Those of an empty one will."""
        if source.words_version is None:
            return True
        if await self._outbox.words_version(key) == source.words_version:
            return True
        if is_empty:
            await self._outbox.put_words_version(key, source.words_version)
        return is_empty

    async def renew(self, source: Source, subjects: Sequence[str]) -> list[str]:
        """Writes the words of these records into their points.

        Returns:
            The records that changed meanwhile. Their points may have the earlier state and must be written again.
        """
        changed: list[str] = []
        for start in range(0, len(subjects), BATCH):
            changed += await self._renew(source, subjects[start : start + BATCH])
        return changed

    async def finish(self, key: str, source: Source) -> None:
        """Notes that all points have current words, once they are on stable storage."""
        await asyncio.sleep(self._index.durable_after_seconds)
        await self._index.flush()
        if source.words_version is not None:
            await self._outbox.put_words_version(key, source.words_version)

    async def _renew(self, source: Source, subjects: Sequence[str]) -> list[str]:
        index: VectorIndex = self._index  # type: ignore[assignment]  # other indexes have no words
        collection = source.schema.name
        async with self._busy.holding((collection, subject) for subject in subjects):
            records = await source.read(subjects)
            of_point = {source.point_id(subject): record for subject, record in records.items()}
            stored = await index.get(collection, list(of_point), with_vectors=True)
            points = [
                Point(point.id, point.vector, of_point[point.id].words, of_point[point.id].payload) for point in stored
            ]
            await index.write(collection, points, WriteMode.UPDATE_PRESENT)
            now = await source.read(subjects)
        return [subject for subject in subjects if now.get(subject) != records.get(subject)]
