"""The fields of the documents of a segment, in the compact form of rows. A search decodes only what it needs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
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
DOCUMENT_BYTES: Final = sum(kind.itemsize for kind in COLUMNS.values())
"""The size of a document in memory, about the same in both forms."""
_ASCENDING: Final = ("row_id", "time")
"""The fields of which the differences of successive documents are stored, because these are small."""
_NEIGHBOURS: Final = ("before", "after")
_SMALL: Final = ("length", "received", "ends_in_question", *LABELS)
_SIZES: Final = struct.Struct("<III")
_FIRST: Final = struct.Struct("<q")
_RANGE: Final = struct.Struct("<qB")


class StoredColumns(Mapping[str, Array]):
    """The columns that `packed` was given, each decoded when it is first needed."""

    def __init__(self, headers: bytes) -> None:
        count, foreign, size = _SIZES.unpack_from(headers)
        # The ids of neighbours: those of the segment, and those of other segments.
        self._ids: Array = np.frombuffer(headers, COLUMNS["id"], count + foreign, _SIZES.size)
        at = _SIZES.size + self._ids.nbytes
        fingerprints = np.frombuffer(headers, COLUMNS["fingerprint"], count, at)
        self._decoded: dict[str, Array] = {"id": self._ids[:count], "fingerprint": fingerprints}
        at += fingerprints.nbytes
        self._count = count
        self._numbers = zlib.decompress(memoryview(headers)[at : at + size])
        self._firsts: dict[str, int] = {}
        self._packed: dict[str, tuple[int, int, int]] = {}
        self._stored: dict[str, Array] = {}
        self._find()

    def __getitem__(self, name: str) -> Array:
        found = self._decoded.get(name)
        if found is None:
            found = self._decoded[name] = self._decode(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMNS)

    def __len__(self) -> int:
        return len(COLUMNS)

    def at(self, name: str, places: Array) -> Array:
        """Returns a field of some documents, without decoding the others if that is possible."""
        if name in self._decoded or name in _ASCENDING:
            return self[name][places]
        if name in _NEIGHBOURS:
            return self._neighbours(self._values(name, np.dtype(np.int64), places), places)
        return self._values(name, COLUMNS[name].base, places)

    def _find(self) -> None:
        """Finds where each column is in the numbers."""
        at = 0
        for name in (*_ASCENDING, *_NEIGHBOURS, *_SMALL):
            if name in _ASCENDING:
                (self._firsts[name],) = _FIRST.unpack_from(self._numbers, at)
                at += _FIRST.size
            least, width = _RANGE.unpack_from(self._numbers, at)
            at += _RANGE.size
            self._packed[name] = (at, least, width)
            at += self._count * width * _width(name)

    def _decode(self, name: str) -> Array:
        if name in _ASCENDING:
            steps = self._values(name, COLUMNS[name])
            return np.cumsum(steps, dtype=COLUMNS[name]) + self._firsts[name]
        if name in _NEIGHBOURS:
            return self._neighbours(self._values(name, np.dtype(np.int64)), np.arange(self._count))
        return self._values(name, COLUMNS[name].base)

    def _values(self, name: str, kind: np.dtype[Any], places: Array | None = None) -> Array:
        """Returns the integers that `_pack` wrote, of all documents or of some."""
        stored = self._stored.get(name)
        at, least, width = self._packed[name]
        if stored is None:
            stored = np.frombuffer(self._numbers, f"<u{width}", self._count * _width(name), at)
            stored = self._stored[name] = stored.reshape(-1, *COLUMNS[name].shape)
        values = (stored if places is None else stored[places]).astype(kind)
        if least:
            values += kind.type(least)
        return values

    def _neighbours(self, distances: Array, places: Array) -> Array:
        """Returns the ids of the neighbours of documents; see `_distances`."""
        if not len(self._ids):
            return np.zeros(len(places), COLUMNS["id"])
        found = self._ids[np.where(distances < self._count, distances + places, distances)]
        found[distances == 0] = b""
        return found


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


def _width(name: str) -> int:
    """Returns how many integers a field of a document has."""
    shape = COLUMNS[name].shape
    return shape[0] if shape else 1


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
