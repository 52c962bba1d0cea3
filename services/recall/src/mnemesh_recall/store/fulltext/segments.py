"""The segments of word indexes: their documents and their postings, as arrays and as the columns of rows.

A search decodes only what it needs.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from mnemesh_recall.model.ranking import RECEIVED_SECTIONS, Key

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


_PAIRS: Final = 1 << 16
_EMPTY: Final = b"\0" * COLUMNS["id"].itemsize
_ABOUT: Final = LABELS.index("about")


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
        return len(self.columns["id"])

    @classmethod
    def from_row(cls, labels: str, headers: bytes, removed: bytes) -> Documents:
        """Returns the documents of a row, and of what `packed` returned."""
        texts = tuple(map(tuple, json.loads(labels)))
        return cls(StoredColumns(headers), texts, np.frombuffer(removed, "<i8"))

    def to_row(self) -> dict[str, str | bytes]:
        """Returns the columns `labels` and `removed`; see `packed` for the rest."""
        return {
            "labels": json.dumps(self.labels, ensure_ascii=False, separators=(",", ":")),
            "removed": self.removed.astype("<i8").tobytes(),
        }

    def at(self, name: str, places: Array) -> Array:
        """Returns a field of some documents."""
        columns = self.columns
        return columns.at(name, places) if isinstance(columns, StoredColumns) else columns[name][places]

    @cached_property
    def pairs(self) -> Array:
        """Bytes 12 and 13 of the ids."""
        return np.ascontiguousarray(_pair(self.columns["id"].view(np.uint16)))

    @cached_property
    def masking(self) -> Array:
        """The row ids whose documents in earlier segments are not valid any more."""
        return np.concatenate([self.columns["row_id"], self.removed])

    @property
    def size(self) -> int:
        """The number of bytes in memory, approximately."""
        texts = sum(64 + len(text) for each in self.labels for text in each)
        return len(self) * DOCUMENT_BYTES + self.removed.nbytes + texts


class JoinedDocuments:
    """The documents of successive segments, the oldest first, numbered through."""

    def __init__(self, parts: Sequence[Documents]) -> None:
        self.parts = parts
        self.offsets: Array = np.cumsum([0, *(len(part) for part in parts)])
        """The number of the first document of each part, and the number of all."""
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def is_valid(self) -> Array:
        """The mask of the documents that no later part replaces or removes."""
        return np.concatenate(valid(self.parts)) if self.parts else np.empty(0, np.bool_)

    def column(self, name: str) -> Array:
        """Returns a field of all documents."""
        found = self._columns.get(name)
        if found is None:
            parts = [part.columns[name] for part in self.parts]
            found = self._columns[name] = np.concatenate(parts) if parts else np.empty(0, COLUMNS[name])
        return found

    def chosen(self, places: Array) -> ChosenDocuments:
        """Returns some documents."""
        return ChosenDocuments(self, places)

    def has_label(self, name: str, texts: Iterable[str]) -> Array:
        """Returns the mask of the documents whose label is one of these texts."""
        wanted, field = set(texts) - {""}, LABELS.index(name)
        masks = [np.empty(0, np.bool_)]
        for part in self.parts:
            codes = [code for code, text in enumerate(part.labels[field]) if text in wanted]
            masks.append(np.isin(part.columns[name], np.array(codes, COLUMNS[name])))
        return np.concatenate(masks)

    def places_of(self, keys: Iterable[Key]) -> Array:
        """Returns the places of the documents with these ids, ascending."""
        wanted = {key for key in keys if key}
        if not wanted or not self.parts:
            return np.empty(0, np.int64)
        is_near = np.zeros(_PAIRS, np.bool_)
        is_near[_pair(np.frombuffer(b"".join(wanted), np.uint16))] = True
        near = np.flatnonzero(is_near[self._pairs])
        found = [key in wanted for key in keys_of(self.column("id")[near])]
        return near[np.array(found, np.bool_)]

    @cached_property
    def _pairs(self) -> Array:
        return np.concatenate([part.pairs for part in self.parts])


class ChosenDocuments:
    """Some documents of several parts, in any order."""

    def __init__(self, documents: JoinedDocuments, places: Array) -> None:
        self._size = len(places)
        numbers = np.searchsorted(documents.offsets, places, side="right") - 1
        self._groups: list[tuple[Documents, Array, Array]] = []
        """Parts, which of the chosen ones are in them, and at which place of the part these are."""
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            rows = np.flatnonzero(numbers == number)
            self._groups.append((documents.parts[number], rows, places[rows] - documents.offsets[number]))

    def column(self, name: str) -> Array:
        """Returns a field."""
        if len(self._groups) == 1:
            part, _, places = self._groups[0]
            return part.at(name, places)
        kind = COLUMNS[name]
        found = np.zeros((self._size, *kind.shape), kind.base)
        for part, rows, places in self._groups:
            found[rows] = part.at(name, places)
        return found

    def keys(self, name: str) -> list[Key]:
        """Returns a field of ids; empty ones for none."""
        return keys_of(self.column(name))

    def abouts(self) -> list[str]:
        """Returns the speaker and the day of each."""
        if len(self._groups) == 1:
            part, _, places = self._groups[0]
            texts = part.labels[_ABOUT]
            return [texts[code] for code in part.at("about", places).tolist()]
        found = [""] * self._size
        for part, rows, places in self._groups:
            texts = part.labels[_ABOUT]
            for row, code in zip(rows.tolist(), part.at("about", places).tolist(), strict=True):
                found[row] = texts[code]
        return found


def keys_of(ids: Array) -> list[Key]:
    """Returns stored ids as keys; empty ones for none."""
    # As values of no type, ids keep the zeros at their ends.
    return [b"" if key == _EMPTY else key for key in ids.view("V16").tolist()]


def valid(parts: Sequence[Documents]) -> list[Array]:
    """Returns for each part, the oldest first, the mask of the documents that no later part replaces or removes."""
    masks: list[Array] = []
    later: Array = np.empty(0, np.int64)
    for part in reversed(parts):
        row_ids = part.columns["row_id"]
        mask: Array = np.ones(len(row_ids), np.bool_)
        if len(later) and len(row_ids):
            near = later[later <= row_ids.max()]
            if len(near):
                mask = ~np.isin(row_ids, near)
        masks.append(mask)
        later = np.concatenate([later, part.masking])
    return masks[::-1]


def _pair(ids: Array) -> Array:
    """Returns bytes 12 and 13 of ids, given as pairs of bytes. They are random in every version of UUIDs."""
    pair: Array = ids[6::8]
    return pair


Occurrences = tuple[Array, Array]
"""The keys and times of the postings of one term; see `Postings`."""

SECTION_BITS: Final = 3
BODY, ABOUT, ASKED, BEFORE, AFTER, SECOND_BEFORE, SECOND_AFTER = range(7)
"""The sections of a document, see `fulltext.documents.Document`. Those from BEFORE on are of neighbours."""
DOCUMENTS_PER_BUCKET: Final = 16
MOST_DOCUMENTS: Final = 16_384
"""The largest number of documents of a segment that is merged from others."""
KEYS_PER_SEGMENT: Final = 1 << 16
_COUNT: Final = np.dtype("<u4")
_TIMES: Final = np.dtype("<u2")


@dataclass(frozen=True, slots=True)
class Postings:
    """The occurrences of terms in documents: `counts` has the number of postings of each term, in the order of terms.

    A key is a document's place in the segment times eight, plus a section. `times` is how often the term occurs there;
    0 if it only occurs beyond the part of a long text that the ranking reads.
    """

    terms: list[str]
    counts: Array
    keys: Array
    times: Array

    def to_bytes(self) -> bytes:
        """Returns the data of a row, a bucket."""
        names = "\n".join(["", *self.terms, ""]).encode()
        sizes = np.array([len(self.terms), len(self.keys)], _COUNT)
        keys, firsts = self.keys.astype(_COUNT), self.starts
        steps = np.diff(keys, prepend=_COUNT.type(0))
        steps[firsts] = keys[firsts]
        parts = (sizes.tobytes(), self.counts.astype(_COUNT).tobytes(), steps.tobytes(), self.times.tobytes(), names)
        return zlib.compress(b"".join(parts), 1)

    @property
    def starts(self) -> Array:
        """The place of the first posting of each term."""
        return np.cumsum(self.counts, dtype=np.int64) - self.counts

    def of(self, term: str) -> Occurrences | None:
        """Returns the keys and times of a term; None if no document has it."""
        if term not in self.terms:
            return None
        place = self.terms.index(term)
        start = int(self.counts[:place].sum())
        stop = start + int(self.counts[place])
        return self.keys[start:stop], self.times[start:stop]


class Bucket:
    """The data of a row of postings, of which a search reads a few terms."""

    def __init__(self, data: bytes) -> None:
        self._raw = zlib.decompress(data)
        self._terms, self._postings = np.frombuffer(self._raw, _COUNT, 2).tolist()
        self._counts = np.frombuffer(self._raw, _COUNT, self._terms, 8)
        self._steps_at = 8 + 4 * self._terms
        self._times_at = self._steps_at + 4 * self._postings
        self._names_at = self._times_at + 2 * self._postings

    def of(self, term: str) -> Occurrences | None:
        """Returns the keys and times of a term; None if no document has it."""
        found = self._raw.find(f"\n{term}\n".encode(), self._names_at)
        if found < 0:
            return None
        place = self._raw.count(b"\n", self._names_at, found)
        start, count = int(self._counts[:place].sum()), int(self._counts[place])
        steps = np.frombuffer(self._raw, _COUNT, count, self._steps_at + 4 * start)
        return np.cumsum(steps, dtype=_COUNT), np.frombuffer(self._raw, _TIMES, count, self._times_at + 2 * start)

    def postings(self) -> Postings:
        """Returns all postings."""
        sums = np.cumsum(np.frombuffer(self._raw, _COUNT, self._postings, self._steps_at), dtype=_COUNT)
        starts = np.cumsum(self._counts, dtype=np.int64) - self._counts
        before = np.concatenate([np.zeros(1, _COUNT), sums])[starts]
        names = self._raw[self._names_at + 1 : -1].decode()
        return Postings(
            names.split("\n") if self._terms else [],
            self._counts,
            sums - np.repeat(before, self._counts),
            np.frombuffer(self._raw, _TIMES, self._postings, self._times_at),
        )


class Segment(NamedTuple):
    """Documents with their words."""

    documents: Documents
    postings: Postings

    @property
    def buckets(self) -> int:
        """The number of rows that its postings are divided into, a power of two."""
        return 1 << max(0, (len(self.documents) - 1) // DOCUMENTS_PER_BUCKET).bit_length()

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yields the number and the data of each bucket that has postings."""
        postings, buckets = self.postings, self.buckets
        of_terms = np.fromiter((bucket_of(term, buckets) for term in postings.terms), np.int64, len(postings.terms))
        order = np.argsort(of_terms, kind="stable")
        starts = postings.starts
        counts = postings.counts[order]
        ends = np.cumsum(counts, dtype=np.int64)
        # The places of the postings of each term, in the new order of terms.
        places = np.arange(len(postings.keys)) + np.repeat(starts[order] - (ends - counts), counts)
        keys, times = postings.keys[places], postings.times[places]
        limits = np.searchsorted(of_terms[order], np.arange(buckets + 1))
        for bucket in range(buckets):
            first, last = int(limits[bucket]), int(limits[bucket + 1])
            if first < last:
                start, stop = int(ends[first] - counts[first]), int(ends[last - 1])
                terms = [postings.terms[place] for place in order[first:last]]
                yield bucket, Postings(terms, counts[first:last], keys[start:stop], times[start:stop]).to_bytes()


def bucket_of(term: str, buckets: int) -> int:
    """Returns the bucket of a term. `buckets` is a power of two."""
    return zlib.crc32(term.encode()) & (buckets - 1)


def joined(parts: Sequence[Postings]) -> Postings:
    """Returns the postings of buckets of one segment, which have different terms."""
    if len(parts) == 1:
        return parts[0]
    terms = [term for part in parts for term in part.terms]
    arrays = ([getattr(part, name) for part in parts] for name in ("counts", "keys", "times"))
    counts, keys, times = (np.concatenate(each) if each else np.empty(0, _COUNT) for each in arrays)
    return Postings(terms, counts, keys, times)
