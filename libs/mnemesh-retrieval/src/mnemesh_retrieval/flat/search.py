"""Exact search: compares the vectors of all segments that may contain a match, or of the newest, with the query's."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
from mnemesh_kit.sql.readahead import Readahead

from mnemesh_retrieval.filters import And, Filter, HasId
from mnemesh_retrieval.flat import file
from mnemesh_retrieval.flat.filters import Mask, matching, segment_filter
from mnemesh_retrieval.flat.segment import CAPACITY, SegmentBatch
from mnemesh_retrieval.index import Hit, SearchQuery

MIN_POINTS: Final = 16
"""A bounded search reads at most as many segments as if each had only this many points."""
SEGMENTS_PER_READ: Final = 128
_BUCKETS: Final = 1 << 16
VECTORS_PER_BLOCK: Final = 1_024
"""The number of vectors compared at once: as floats, they fit into a core's cache."""

Floats = npt.NDArray[np.float32]
_of_thread = threading.local()


@dataclass(slots=True)
class SearchState:
    """The points that were compared with their similarities, and the amount of data that was read."""

    ids: list[npt.NDArray[np.bytes_]] = field(default_factory=list)
    scores: list[Floats] = field(default_factory=list)
    masks: list[Mask] = field(default_factory=list)
    """Which of the points match the filter."""
    segments: int = 0

    @property
    def points(self) -> int:
        """The number of points."""
        return sum(map(len, self.ids))

    def best(self, limit: int) -> list[tuple[UUID, float]]:
        """Returns the best matches, best first, ties by id."""
        if not self.ids:
            return []
        mask = np.concatenate(self.masks)
        ids, scores = np.concatenate(self.ids)[mask], np.concatenate(self.scores)[mask]
        if len(scores) > limit:
            worst = np.partition(scores, -limit)[-limit]
            ids, scores = ids[scores >= worst], scores[scores >= worst]
        found = [
            (UUID(bytes=id_.ljust(16, b"\0")), score) for id_, score in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
        return sorted(found, key=lambda item: (-item[1], item[0]))[:limit]


class FlatComparison:
    """See Comparison. It has the similarities of all points that were compared: 24 bytes for each."""

    def __init__(self, state: SearchState, limit: int) -> None:
        self.hits = [Hit(id_, score, {}) for id_, score in state.best(limit)]
        self._ids = np.concatenate(state.ids) if state.ids else np.empty(0, "S16")
        self._scores = np.concatenate(state.scores) if state.scores else np.empty(0, np.float32)

    async def similarities(self, ids: Collection[bytes]) -> dict[bytes, float]:
        """See Comparison.similarities. The points that were compared are those of the segments that were read."""
        if not ids or not len(self._ids):
            return {}
        is_wanted = np.zeros(_BUCKETS, np.bool_)
        is_wanted[_buckets(np.frombuffer(b"".join(ids), np.uint16))] = True
        rows = np.flatnonzero(is_wanted[_buckets(np.ascontiguousarray(self._ids).view(np.uint16))])
        found = zip(self._ids[rows].tolist(), self._scores[rows].tolist(), strict=True)
        wanted = frozenset(ids)
        near = ((id_.ljust(16, b"\0"), score) for id_, score in found)
        return {id_: score for id_, score in near if id_ in wanted}


def _buckets(pairs: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Returns bytes 12 and 13 of ids, given their bytes in pairs. They are random in every version of UUIDs."""
    return pairs[6::8]


def nearest(
    conn: sqlite3.Connection, readahead: Readahead, collection: int, vector: Floats, query: SearchQuery
) -> SearchState:
    """Compares the points that a query covers with a vector of length one."""
    state = SearchState()
    limit = -(-query.newest // MIN_POINTS) if query.newest else -1
    numbers = file.candidate_segments(conn, collection, segment_filter(query.filter), limit)
    index, remaining = 0, query.newest or len(numbers) * CAPACITY
    while index < len(numbers) and remaining > 0:
        some = numbers[index : index + min(SEGMENTS_PER_READ, -(-remaining // CAPACITY))]
        readahead.rows(conn, file.SEGMENTS, some)
        batch = file.read_batch(conn, some, len(vector))
        _compare(state, batch, matching(query.filter, batch), vector)
        index, remaining = index + len(some), remaining - len(batch)
    state.segments = index
    if query.also and query.newest:
        _compare_also(state, conn, collection, vector, query, set(numbers[:index]))
    return state


def _compare_also(
    state: SearchState, conn: sqlite3.Connection, collection: int, vector: Floats, query: SearchQuery, read: set[int]
) -> None:
    """Compares the points of `query.also` that are in other segments."""
    wanted = HasId(query.also)
    ids = [id_.bytes for id_ in query.also]
    others = [number for number in file.segments_of(conn, collection, ids) if number not in read]
    for start in range(0, len(others), SEGMENTS_PER_READ):
        batch = file.read_batch(conn, others[start : start + SEGMENTS_PER_READ], len(vector))
        _compare(state, batch, matching(And((query.filter, wanted)), batch), vector)
    state.segments += len(others)


def matches(
    conn: sqlite3.Connection, collection: int, dimension: int, condition: Filter
) -> Iterator[tuple[SegmentBatch, Mask]]:
    """Yields the segments that may contain a match, without vectors, with the masks of their matching points."""
    numbers = file.candidate_segments(conn, collection, segment_filter(condition))
    for start in range(0, len(numbers), SEGMENTS_PER_READ):
        some = numbers[start : start + SEGMENTS_PER_READ]
        batch = file.read_batch(conn, some, dimension, vectors=False)
        yield batch, matching(condition, batch)


def _compare(state: SearchState, batch: SegmentBatch, mask: Mask, vector: Floats) -> None:
    scores = np.empty(len(batch), np.float32)
    numbers = _buffer(len(vector))
    done = filled = 0
    for codes in batch.codes:
        if filled + len(codes) > VECTORS_PER_BLOCK:
            np.dot(numbers[:filled], vector, out=scores[done : done + filled])
            done, filled = done + filled, 0
        np.copyto(numbers[filled : filled + len(codes)], codes)
        filled += len(codes)
    np.dot(numbers[:filled], vector, out=scores[done:])
    scores *= batch.headers["inverse"]
    state.ids.append(batch.headers["id"])
    state.scores.append(scores)
    state.masks.append(mask)


def _buffer(dimension: int) -> Floats:
    """Returns the block of this thread, in which vectors are compared as floats.

    It is used again: the system would clear the memory of a new one page by page.
    """
    found: Floats | None = getattr(_of_thread, "numbers", None)
    if found is None or found.shape[1] != dimension:
        found = _of_thread.numbers = np.empty((VECTORS_PER_BLOCK, dimension), np.float32)
    return found


def unit(vector: Sequence[float] | Floats) -> Floats:
    """Returns the vector scaled to length one."""
    floats = np.asarray(vector, np.float32)
    scaled: Floats = floats / np.float32(np.linalg.norm(floats))
    return scaled
