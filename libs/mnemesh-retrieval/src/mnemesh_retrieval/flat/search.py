"""Exact search: compares the vectors of all segments that may contain a match, or of the newest, with the query's."""

import sqlite3
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.filters import And, Filter, HasId
from mnemesh_retrieval.flat import file
from mnemesh_retrieval.flat.file import CAPACITY, Codes, Mask, SegmentBatch, matching, segment_filter
from mnemesh_retrieval.index import Hit, SearchQuery

MIN_POINTS: Final = 16
"""A bounded search reads at most as many segments as if each had only this many points."""
SEGMENTS_PER_READ: Final = 128
_BUCKETS: Final = 1 << 16
NUMBERS_PER_BLOCK: Final = 1 << 18
"""The number of floats that are compared at once. Larger blocks would leave a core's cache, and the library for linear
algebra would divide them among threads, which take longer where other work keeps the cores busy."""

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


class FlatComparison:
    """See Comparison. It has the similarities of all points that were compared: 24 bytes for each."""

    def __init__(self, state: SearchState, limit: int) -> None:
        self._ids = _joined(state.ids, "S16")
        self._scores: Floats = _joined(state.scores, np.float32)
        self.hits = [Hit(id_, score, {}) for id_, score in self._best(_joined(state.masks, np.bool_), limit)]

    async def similarities(self, ids: Collection[bytes]) -> dict[bytes, float]:
        """See Comparison.similarities. The points that were compared are those of the segments that were read."""
        if not ids or not len(self._ids):
            return {}
        is_wanted = np.zeros(_BUCKETS, np.bool_)
        is_wanted[_buckets(np.frombuffer(b"".join(ids), np.uint16))] = True
        rows = np.flatnonzero(is_wanted[_buckets(self._ids.view(np.uint16))])
        found = zip(_bytes(self._ids[rows]), self._scores[rows].tolist(), strict=True)
        wanted = frozenset(ids)
        return {id_: score for id_, score in found if id_ in wanted}

    def _best(self, mask: Mask, limit: int) -> list[tuple[UUID, float]]:
        """Returns the best points of a mask, best first, ties by id."""
        rows = np.flatnonzero(mask)
        scores = self._scores[rows]
        if len(scores) > limit:
            rows = rows[scores >= np.partition(scores, -limit)[-limit]]
        ids = [UUID(bytes=id_) for id_ in _bytes(self._ids[rows])]
        found = zip(ids, self._scores[rows].tolist(), strict=True)
        return sorted(found, key=lambda item: (-item[1], item[0]))[:limit]


def _joined(parts: Sequence[npt.NDArray[Any]], kind: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _bytes(ids: npt.NDArray[np.bytes_]) -> list[bytes]:
    found: list[bytes] = ids.view("V16").tolist()  # as values of no type, ids keep the zeros at their ends
    return found


def _buckets(pairs: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Returns bytes 12 and 13 of ids, given their bytes in pairs. They are random in every version of UUIDs."""
    return pairs[6::8]


def nearest(conn: sqlite3.Connection, collection: int, vector: Floats, query: SearchQuery) -> SearchState:
    """Compares the points that a query covers with a vector of length one."""
    state = SearchState()
    limit = -(-query.newest // MIN_POINTS) if query.newest else -1
    numbers = file.candidate_segments(conn, collection, segment_filter(query.filter), limit)
    index, remaining = 0, query.newest or len(numbers) * CAPACITY
    while index < len(numbers) and remaining > 0:
        some = numbers[index : index + min(SEGMENTS_PER_READ, -(-remaining // CAPACITY))]
        batch = _compare(state, conn, some, vector, query.filter)
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
        _compare(state, conn, others[start : start + SEGMENTS_PER_READ], vector, And((query.filter, wanted)))
    state.segments += len(others)


def matches(
    conn: sqlite3.Connection, collection: int, dimension: int, condition: Filter
) -> Iterator[tuple[SegmentBatch, Mask]]:
    """Yields the segments that may contain a match, without vectors, with the masks of their matching points."""
    numbers = file.candidate_segments(conn, collection, segment_filter(condition))
    for start in range(0, len(numbers), SEGMENTS_PER_READ):
        some = numbers[start : start + SEGMENTS_PER_READ]
        batch = file.read_batch(conn, some, dimension)
        yield batch, matching(condition, batch)


def _compare(
    state: SearchState, conn: sqlite3.Connection, numbers: Sequence[int], vector: Floats, condition: Filter
) -> SegmentBatch:
    """Compares the points of segments while they are read. Returns the segments."""
    products = _Products(vector)
    batch = file.read_batch(conn, numbers, len(vector), products.add, at_once=products.segments)
    state.ids.append(batch.headers["id"])
    state.scores.append(products.all() * batch.headers["inverse"])
    state.masks.append(matching(condition, batch))
    return batch


class _Products:
    """The products of a vector and those of segments, which are compared in blocks as floats."""

    def __init__(self, vector: Floats) -> None:
        self._vector = vector
        self._block = _block(len(vector))
        self._found: list[Floats] = []

    @property
    def segments(self) -> int:
        """The number of segments that fit into a block."""
        return len(self._block) // CAPACITY

    def add(self, codes: Codes) -> None:
        """Adds the vectors of a block, or of less."""
        floats = self._block[: len(codes)]
        np.copyto(floats, codes)
        self._found.append(floats @ self._vector)

    def all(self) -> Floats:
        """Returns the products of all vectors, in the order in which they were added."""
        return np.concatenate(self._found)


def _block(dimension: int) -> Floats:
    """Returns the block of this thread, in which vectors are compared as floats.

    It is used again: the system would clear the memory of a new one page by page.
    """
    found: Floats | None = getattr(_of_thread, "block", None)
    if found is None or found.shape[1] != dimension:
        found = _of_thread.block = np.empty((max(CAPACITY, NUMBERS_PER_BLOCK // dimension), dimension), np.float32)
    return found


def unit(vector: Sequence[float] | Floats) -> Floats:
    """Returns the vector scaled to length one."""
    floats = np.asarray(vector, np.float32)
    scaled: Floats = floats / np.float32(np.linalg.norm(floats))
    return scaled
