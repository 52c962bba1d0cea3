"""The documents of a segment without their words: as columns in memory, and in the compact form of a row."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mnemesh_recall.model.candidates import RECEIVED_SECTIONS

Array = npt.NDArray[Any]

LABELS: Final = ("conversation", "role", "speaker", "sender", "about")
"""The fields of a document that are numbers of texts in the segment's labels."""
COLUMNS: Final[Mapping[str, np.dtype[Any]]] = {
    "row_id": np.dtype("<i8"),
    "id": np.dtype("S16"),
    "before": np.dtype("S16"),
    "after": np.dtype("S16"),
    "time": np.dtype("<i8"),
    "fingerprint": np.dtype("<u8"),
    "length": np.dtype("<u4"),
    "received": np.dtype(("<u2", (RECEIVED_SECTIONS,))),
    "ends_in_question": np.dtype("?"),
    **dict.fromkeys(LABELS, np.dtype("<u2")),
}
"""The fields of a document. `before` and `after` are the ids of its neighbours, empty for none; `time` is in
microseconds since 1970; `length` is the number of its words, and `received` are those of its neighbours' sections."""
_ASCENDING: Final = ("row_id", "time")
"""The fields of which the differences of successive documents are stored, because these are small."""
_SMALL: Final = ("length", "received", "ends_in_question", *LABELS)
_SIZES: Final = struct.Struct("<III")
_FIRST: Final = struct.Struct("<q")
_RANGE: Final = struct.Struct("<qB")


@dataclass(frozen=True)
class Documents:
    """The documents of a segment without their words."""

    columns: Mapping[str, Array]
    """An array for each of COLUMNS, with an element for each document."""
    labels: tuple[tuple[str, ...], ...]
    """The texts of each of LABELS. The first is "", which stands for none."""
    removed: Array
    """The row ids of documents of earlier segments that do not exist any more."""

    def __len__(self) -> int:
        return len(self.columns["row_id"])

    @classmethod
    def from_row(cls, labels: str, headers: bytes, removed: bytes) -> Documents:
        """Returns the documents of a row, and of what `packed` returned."""
        texts = tuple(map(tuple, json.loads(labels)))
        return cls(unpacked(headers), texts, np.frombuffer(removed, "<i8"))

    def to_row(self) -> dict[str, str | bytes]:
        """Returns the columns `labels` and `removed`; see `packed` for the rest."""
        return {
            "labels": json.dumps(self.labels, ensure_ascii=False, separators=(",", ":")),
            "removed": self.removed.astype("<i8").tobytes(),
        }

    def places_of(self, ids: Collection[bytes]) -> Array:
        """Returns the places of the documents with these ids, ascending."""
        is_near = np.zeros(1 << 16, np.bool_)
        is_near[_pair(np.frombuffer(b"".join(ids), np.uint16))] = True
        stored = self.columns["id"]
        near = np.flatnonzero(is_near[_pair(stored.view(np.uint16))])
        found = (id_.ljust(16, b"\0") in ids for id_ in stored[near].tolist())
        return near[np.fromiter(found, np.bool_, len(near))]

    @cached_property
    def masking(self) -> Array:
        """The row ids whose documents in earlier segments are not valid any more."""
        return np.concatenate([self.columns["row_id"], self.removed])

    @property
    def size(self) -> int:
        """The number of bytes in memory, approximately."""
        texts = sum(64 + len(text) for each in self.labels for text in each)
        return sum(column.nbytes for column in self.columns.values()) + self.removed.nbytes + texts


def packed(columns: Mapping[str, Array]) -> bytes:
    """Returns the columns in about 40 bytes per document, because a search that finds them on disk reads them all.

    Numbers are compressed, in as many bytes as their range needs. A neighbour in the same segment is a distance in
    documents. Ids, those of neighbours in other segments, and fingerprints do not compress, and follow as they are.
    """
    ids = columns["id"]
    count = len(ids)
    before, foreign_before = _distances(ids, columns["before"], count)
    after, foreign_after = _distances(ids, columns["after"], count + len(foreign_before))
    parts = []
    for name in _ASCENDING:
        first = columns[name][:1]
        parts += [_FIRST.pack(int(first.sum())), _pack(np.diff(columns[name], prepend=first))]
    parts += [_pack(before), _pack(after), *(_pack(columns[name]) for name in _SMALL)]
    numbers = zlib.compress(b"".join(parts))
    foreign = np.concatenate([foreign_before, foreign_after])
    sizes = _SIZES.pack(count, len(foreign), len(numbers))
    return b"".join((sizes, ids.tobytes(), foreign.tobytes(), columns["fingerprint"].tobytes(), numbers))


def unpacked(headers: bytes) -> dict[str, Array]:
    """Returns the columns that `packed` was given."""
    count, foreign, size = _SIZES.unpack_from(headers)
    # The ids of neighbours: those of the segment, those of other segments, and the empty one.
    ids = np.frombuffer(headers, COLUMNS["id"], count + foreign, _SIZES.size)
    at = _SIZES.size + ids.nbytes
    found = {"id": ids[:count], "fingerprint": np.frombuffer(headers, COLUMNS["fingerprint"], count, at)}
    at += 8 * count
    numbers, at = zlib.decompress(headers[at : at + size]), 0
    for name in _ASCENDING:
        (first,) = _FIRST.unpack_from(numbers, at)
        steps, at = _unpack(numbers, at + _FIRST.size, count, COLUMNS[name])
        found[name] = np.cumsum(steps, dtype=COLUMNS[name]) + first
    table = np.append(ids, b"")
    for name in ("before", "after"):
        distances, at = _unpack(numbers, at, count, np.dtype(np.int64))
        places = np.where(distances < count, distances + np.arange(count), distances)
        found[name] = table[np.where(distances == 0, -1, places)]
    for name in _SMALL:
        kind, shape = COLUMNS[name].base, COLUMNS[name].shape
        values, at = _unpack(numbers, at, count * (shape[0] if shape else 1), kind)
        found[name] = values.reshape(count, *shape)
    return found


def _distances(ids: Array, neighbours: Array, first: int) -> tuple[Array, Array]:
    """Returns for each neighbour how many documents after its own it is, and the ids of those that are not among them.

    A neighbour that is none is 0; those that are not among the documents are numbered from `first`.
    """
    if not len(ids):
        return np.empty(0, np.int64), neighbours
    order = np.argsort(ids)
    places = order[np.minimum(np.searchsorted(ids, neighbours, sorter=order), len(ids) - 1)]
    is_known = ids[places] == neighbours
    is_foreign = ~is_known & (neighbours != b"")
    distances = np.where(is_known, places - np.arange(len(ids)), 0)
    distances[is_foreign] = first + np.arange(int(is_foreign.sum()))
    return distances, neighbours[is_foreign]


def _pack(values: Array) -> bytes:
    """Returns integers as differences from the smallest, each in as many bytes as the largest difference needs."""
    numbers = values.ravel().astype(np.int64)
    least = int(np.min(numbers)) if len(numbers) else 0
    above = numbers - least
    largest = int(np.max(above)) if len(numbers) else 0
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << 8 * width)
    return _RANGE.pack(least, width) + above.astype(f"<u{width}").tobytes()


def _unpack(data: bytes, at: int, count: int, kind: np.dtype[Any]) -> tuple[Array, int]:
    """Returns the integers that `_pack` wrote at a place, and the place after them."""
    least, width = _RANGE.unpack_from(data, at)
    at += _RANGE.size
    values = np.frombuffer(data, f"<u{width}", count, at).astype(kind)
    if least:
        values += kind.type(least)
    return values, at + count * width


def _pair(ids: Array) -> Array:
    """Returns bytes 12 and 13 of ids, given as pairs of bytes. They are random in every version of UUIDs."""
    pair: Array = ids[6::8]
    return pair
