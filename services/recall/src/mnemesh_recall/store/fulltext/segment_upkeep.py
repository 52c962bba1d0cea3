"""Moves documents from tails to segments, and merges segments, in short transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.sql import Database

from mnemesh_recall.store.fulltext import segment_rows
from mnemesh_recall.store.fulltext.documents import FulltextIndex
from mnemesh_recall.store.fulltext.segment_building import built, merged
from mnemesh_recall.store.fulltext.segment_rows import LEAST_CHANGES
from mnemesh_recall.store.fulltext.segments import MOST_DOCUMENTS, Segment, valid

LEAST_TAIL: Final = 32
"""The length of a tail that is written as a segment. A search reads the documents of a tail one by one."""
PAGE: Final = 256
"""The largest number of documents that one transaction moves to a segment."""


class WordSegmentStore:
    """The segments of the word indexes of agents, and the documents that are not in them yet (the tails).

    It keeps the tails of agents short, and the number of their segments logarithmic. Every call is safe at any time,
    also next to another process on the same database: a merge whose segments another process has replaced is given up.
    """

    def __init__(self, database: Database, index: FulltextIndex) -> None:
        self._database = database
        self._index = index

    def changed_agents(self) -> list[str]:
        """Returns the agents whose tails may be long by changes in this process since the last call."""
        return self._index.changed.take()

    def mark_changed(self, agent_id: str) -> None:
        """Makes `changed_agents` return an agent."""
        self._index.changed.add(agent_id, LEAST_CHANGES)

    async def long_tails(self, least: int = LEAST_TAIL) -> list[str]:
        """Returns the agents with long tails. Reads all tails."""
        return await self._database.read(
            lambda conn: segment_rows.agents_with_tails(conn, least), name="segments.long_tails"
        )

    async def move_tail(self, agent_id: str, least: int = LEAST_TAIL) -> int:
        """Writes the oldest documents of a tail as a segment if it is at least so long. Returns their number."""
        if len(await self._database.read(lambda conn: segment_rows.tail(conn, agent_id, least))) < least:
            return 0

        def move(conn: sa.Connection) -> int:
            # With this read, PostgreSQL refuses one of two transactions that replace and add segments at the same time.
            # The new id is then larger than all others, also than those of a merge of other replicas.
            segment_rows.segments_of(conn, agent_id)
            row_ids = segment_rows.tail(conn, agent_id, PAGE)
            if row_ids:
                live = self._index.document_rows(conn, row_ids)
                existing = {row.row_id for row in live}
                removed = [row_id for row_id in row_ids if row_id not in existing]
                segment_rows.insert(conn, agent_id, built(live, removed))
                segment_rows.remove_from_tail(conn, agent_id, row_ids)
            return len(row_ids)

        return await self._database.write(move, name="segments.move_tail")

    async def merge(self, agent_id: str) -> bool:
        """Merges some segments of an agent if there are more than needed. Returns whether it did."""
        known = await self._database.read(lambda conn: segment_rows.segments_of(conn, agent_id))
        chosen = to_merge([row.documents for row in known])
        return chosen > 1 and await self._replace(agent_id, [row.id for row in known], chosen)

    async def rewrite(self, agent_id: str) -> None:
        """Moves the whole tail of an agent, and removes the words of documents that do not exist any more."""
        while await self.move_tail(agent_id, least=1):
            pass
        while await self.merge(agent_id):
            pass
        known = await self._database.read(lambda conn: [row.id for row in segment_rows.segments_of(conn, agent_id)])
        # The oldest first: once it is rewritten, no earlier one needs the removed row ids of the next.
        for segment_id in known:
            await self._database.write(partial(_clean, agent_id, segment_id), name="segments.clean")

    async def agents(self) -> list[str]:
        """Returns the agents with a segment or a tail."""
        return await self._database.read(segment_rows.agents_with_segments)

    async def _replace(self, agent_id: str, known: Sequence[int], count: int) -> bool:
        """Replaces the newest segments by one. Returns False if another process has changed the segments."""
        old = known[-count:]

        def read(conn: sa.Connection) -> list[Segment] | None:
            found = [row for row in segment_rows.segments_of(conn, agent_id) if row.id in old]
            return segment_rows.read(conn, found) if len(found) == len(old) else None

        segments = await self._database.read(read, name="segments.read")
        if segments is None:
            return False
        segment = await asyncio.to_thread(_merged, segments, is_whole=count == len(known))

        def write(conn: sa.Connection) -> bool:
            if [row.id for row in segment_rows.segments_of(conn, agent_id)] != list(known):
                return False
            segment_rows.delete(conn, old)
            if len(segment.documents) or len(segment.documents.removed):
                segment_rows.insert(conn, agent_id, segment)
            return True

        return await self._database.write(write, name="segments.replace")


def _merged(segments: Sequence[Segment], *, is_whole: bool) -> Segment:
    return merged(segments, valid([segment.documents for segment in segments]), keep_removed=not is_whole)


def _clean(agent_id: str, segment_id: int, conn: sa.Connection) -> None:
    """Rewrites a segment without the documents that others replace or remove. No earlier one has such documents."""
    known = segment_rows.segments_of(conn, agent_id)
    documents, _ = segment_rows.contents_of(conn, known, ())
    masks = zip(known, valid([documents[row.id] for row in known]), strict=True)
    row, mask = next((row, mask) for row, mask in masks if row.id == segment_id)
    if not mask.all() or len(documents[segment_id].removed):
        segment = merged(segment_rows.read(conn, [row]), [mask], keep_removed=False)
        segment_rows.delete(conn, [segment_id])
        if mask.any():
            segment_rows.insert(conn, agent_id, segment)


def to_merge(documents: Sequence[int]) -> int:
    """Returns how many of the newest segments are merged, given the numbers of their documents, the oldest first.

    Afterwards, each segment has more than twice as many documents as all newer ones, unless one of so many would be too
    large. A small newest segment does not keep older ones from being merged.
    """
    total, chosen = 0, 1
    for count, number in enumerate(reversed(documents), start=1):
        if count > 1 and total + number > MOST_DOCUMENTS:
            break
        if number <= 2 * total:
            chosen = count
        total += number
    return min(chosen, len(documents))
