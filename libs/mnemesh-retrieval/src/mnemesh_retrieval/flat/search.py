"""Search in blocks: every vector of the blocks that can have a match, or of the newest of them, against one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.filters import And, Filter, HasId
from mnemesh_retrieval.flat import file
from mnemesh_retrieval.flat.filters import Mask, matching, narrowing
from mnemesh_retrieval.flat.segment import CAPACITY, Batch
from mnemesh_retrieval.index import SearchQuery

FEW: Final = 16
"""A bounded search reads at most as many blocks as there are when each has so few points."""
AT_ONCE: Final = 128
"""Blocks that are read by one statement."""
ROWS: Final = 1_024
"""Vectors that are compared at once: what they are as floats fits into a core's cache."""

Floats = npt.NDArray[np.float32]


@dataclass(slots=True)
class Found:
    """Points with their likeness, and how much was looked at for them."""

    ids: list[npt.NDArray[np.bytes_]] = field(default_factory=list)
    scores: list[Floats] = field(default_factory=list)
    blocks: int = 0
    points: int = 0

    def best(self, limit: int) -> list[tuple[UUID, float]]:
        """Best first, ties by id."""
        if not self.ids:
            return []
        ids, scores = np.concatenate(self.ids), np.concatenate(self.scores)
        if len(scores) > limit:
            worst = np.partition(scores, -limit)[-limit]
            ids, scores = ids[scores >= worst], scores[scores >= worst]
        found = [
            (UUID(bytes=id_.ljust(16, b"\0")), score) for id_, score in zip(ids.tolist(), scores.tolist(), strict=True)
        ]
        return sorted(found, key=lambda item: (-item[1], item[0]))[:limit]


def nearest(conn: sqlite3.Connection, collection: int, vector: Floats, query: SearchQuery) -> Found:
    """What a query looks at. The vector is of length one."""
    found = Found()
    numbers = file.numbers(conn, collection, narrowing(query.filter), -(-query.newest // FEW) if query.newest else -1)
    place, left = 0, query.newest or len(numbers) * CAPACITY
    while place < len(numbers) and left > 0:
        some = numbers[place : place + min(AT_ONCE, -(-left // CAPACITY))]
        batch = file.read_all(conn, some, len(vector))
        _look(found, batch, matching(query.filter, batch), vector)
        place, left = place + len(some), left - len(batch)
    found.blocks = place
    if query.also and query.newest:
        _look_also(found, conn, collection, vector, query, set(numbers[:place]))
    return found


def _look_also(
    found: Found, conn: sqlite3.Connection, collection: int, vector: Floats, query: SearchQuery, seen: set[int]
) -> None:
    wanted = HasId(query.also)
    ids = [id_.bytes for id_ in query.also]
    others = [number for number in file.holding(conn, collection, ids) if number not in seen]
    for start in range(0, len(others), AT_ONCE):
        batch = file.read_all(conn, others[start : start + AT_ONCE], len(vector))
        _look(found, batch, matching(And((query.filter, wanted)), batch), vector)
    found.blocks += len(others)


def matches(conn: sqlite3.Connection, collection: int, dimension: int, where: Filter) -> Iterator[tuple[Batch, Mask]]:
    """All blocks that can have a match, some at a time and without vectors, with which of their points match."""
    numbers = file.numbers(conn, collection, narrowing(where))
    for start in range(0, len(numbers), AT_ONCE):
        some = numbers[start : start + AT_ONCE]
        batch = file.read_all(conn, some, dimension, vectors=False)
        yield batch, matching(where, batch)


def _look(found: Found, batch: Batch, mask: Mask, vector: Floats) -> None:
    found.points += len(batch)
    if not mask.any():
        return
    scores = np.empty(len(batch), np.float32)
    scratch = np.empty((min(len(batch), ROWS), len(vector)), np.float32)
    for start in range(0, len(batch), ROWS):
        codes = batch.codes[start : start + ROWS]
        numbers = scratch[: len(codes)]
        np.copyto(numbers, codes)
        np.dot(numbers, vector, out=scores[start : start + len(codes)])
    scores *= batch.heads["inverse"]
    found.ids.append(batch.heads["id"][mask])
    found.scores.append(scores[mask])


def unit(vector: Sequence[float] | Floats) -> Floats:
    """The vector at the length of one."""
    given = np.asarray(vector, np.float32)
    made: Floats = given / np.float32(np.linalg.norm(given))
    return made
