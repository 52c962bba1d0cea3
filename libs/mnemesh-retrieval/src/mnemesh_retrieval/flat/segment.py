"""Blocks: up to 64 points of one group, as arrays and as the columns of a row."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.errors import PointInvalid

CAPACITY: Final = 64
"""Points of a block. Adding to a block writes it anew, and reading takes about as long for each block as for as many
points."""
MOST_LABELS: Final = 64
"""Different labels of a block: each point says by one bit of a number whether it has one."""
HEAD: Final = np.dtype([("id", "S16"), ("time", "<i8"), ("inverse", "<f4"), ("bits", "<u8")])
"""What is kept of a point beside its vector: `inverse` is one by the length of the vector as it is kept."""
NEVER: Final = np.iinfo(np.int64).min
"""The time of a point without one."""

Heads = npt.NDArray[Any]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Entry:
    """A point that is to be kept."""

    id: bytes
    time: int
    """Microseconds since 1970."""
    labels: tuple[str, ...]
    vector: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Block:
    """Points of one tenant; `heads` and `codes` have a row for each."""

    labels: tuple[str, ...]
    heads: Heads
    codes: Codes

    @classmethod
    def empty(cls, dimension: int) -> Block:
        """A block to begin with."""
        return cls((), np.empty(0, HEAD), np.empty((0, dimension), np.int8))

    @classmethod
    def of_row(cls, labels: str, head: bytes, vectors: bytes, dimension: int) -> Block:
        """The block of a row."""
        codes = np.frombuffer(vectors, np.int8).reshape(-1, dimension)
        return cls(labels_of_row(labels), np.frombuffer(head, HEAD), codes)

    def row(self) -> tuple[str, bytes, bytes]:
        """Labels, heads and vectors as columns."""
        return json.dumps(self.labels), self.heads.tobytes(), self.codes.tobytes()

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def oldest(self) -> int:
        """The earliest time of its points."""
        return int(self.heads["time"].min())

    @property
    def newest(self) -> int:
        """The latest time of its points."""
        return int(self.heads["time"].max())

    def ids(self) -> list[bytes]:
        """The ids of its points."""
        return ids_of(self.heads)

    def without(self, ids: Sequence[bytes]) -> Block:
        """What is left where these points go; labels that nobody has any more go too."""
        return self.kept(~np.isin(self.heads["id"], np.array(ids, "S16")))

    def kept(self, kept: npt.NDArray[np.bool_]) -> Block:
        """The points of a mask, with their labels."""
        heads = self.heads[kept]
        rest = Block((), np.empty(0, HEAD), self.codes[:0])
        labels = [self._labels_of(int(bits)) for bits in heads["bits"]]
        return rest._joined(heads, self.codes[kept], labels)

    def room(self, entries: Sequence[Entry]) -> int:
        """How many of the entries, from the first on, still go in."""
        labels = set(self.labels)
        for place, entry in enumerate(entries[: CAPACITY - len(self)]):
            labels.update(entry.labels)
            if len(labels) > MOST_LABELS:
                return place
        return min(len(entries), CAPACITY - len(self))

    def grown(self, entries: Sequence[Entry]) -> Block:
        """With these points too, for which there must be room."""
        codes, inverses = quantized(np.stack([entry.vector for entry in entries]))
        heads = np.empty(len(entries), HEAD)
        heads["id"] = [entry.id for entry in entries]
        heads["time"] = [entry.time for entry in entries]
        heads["inverse"] = inverses
        return self._joined(heads, codes, [entry.labels for entry in entries])

    def _joined(self, heads: Heads, codes: Codes, labels: Sequence[Sequence[str]]) -> Block:
        """With heads whose bits are still to be said."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for each in labels:
            for label in each:
                numbers.setdefault(label, len(numbers))
        heads["bits"] = [sum(1 << numbers[label] for label in set(each)) for each in labels]
        return Block(tuple(numbers), np.concatenate([self.heads, heads]), np.concatenate([self.codes, codes]))

    def _labels_of(self, bits: int) -> list[str]:
        return [label for number, label in enumerate(self.labels) if bits >> number & 1]


@dataclass(frozen=True, slots=True)
class Batch:
    """Several blocks, read to be looked through at once; `heads` and `codes` have a row for each point."""

    labels: tuple[str, ...]
    """Of each block, as its row has them."""
    counts: tuple[int, ...]
    """How many points each block has."""
    heads: Heads
    codes: Codes
    """Without rows where the vectors were not read."""

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[str, bytes, bytes]], dimension: int) -> Batch:
        """The blocks of rows: labels, heads, vectors."""
        heads = np.frombuffer(b"".join(head for _, head, _ in rows), HEAD)
        codes = np.frombuffer(b"".join(vectors for _, _, vectors in rows), np.int8).reshape(-1, dimension)
        counts = tuple(len(head) // HEAD.itemsize for _, head, _ in rows)
        return cls(tuple(labels for labels, _, _ in rows), counts, heads, codes)

    def having(self, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which points have at least one of the labels."""
        bits: dict[str, int] = {}
        for labels in self.labels:
            if labels not in bits:  # the blocks of a tenant mostly have the same
                names = labels_of_row(labels)
                bits[labels] = sum(1 << number for number, name in enumerate(names) if name in wanted)
        each = np.array([bits[labels] for labels in self.labels], np.uint64)
        found: npt.NDArray[np.bool_] = (self.heads["bits"] & np.repeat(each, self.counts)) != 0
        return found

    def __len__(self) -> int:
        return len(self.heads)


def labels_of_row(labels: str) -> tuple[str, ...]:
    """The labels of a block, in the order of their bits."""
    return tuple(json.loads(labels))


def ids_of(heads: Heads) -> list[bytes]:
    """The ids of points, sixteen bytes each."""
    return [id_.ljust(16, b"\0") for id_ in heads["id"].tolist()]  # numpy takes zeros at the end for padding


def quantized(vectors: npt.NDArray[np.float32]) -> tuple[Codes, npt.NDArray[np.float32]]:
    """Vectors, none of them zero, as numbers of eight bits, each by a scale of its own; and one by their lengths.

    The cosine with another vector is off by a thousandth or so.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    codes = np.rint(vectors * (127 / largest)).astype(np.int8)
    lengths = np.linalg.norm(codes.astype(np.float32), axis=1)
    return codes, (1 / lengths).astype(np.float32)


def require_few(labels: Sequence[str], point_id: object) -> None:
    """PointInvalid for more labels than a block can tell apart."""
    if len(labels) > MOST_LABELS:
        raise PointInvalid(f"point {point_id}: more than {MOST_LABELS} values of its keyword fields")
