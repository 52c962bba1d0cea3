"""Segments of a word index: their postings as arrays, and as the columns of rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from mnemesh_recall.store.sql.word_segments.columns import Array
from mnemesh_recall.store.sql.word_segments.documents import Documents

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
