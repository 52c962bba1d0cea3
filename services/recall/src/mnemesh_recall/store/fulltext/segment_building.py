"""Builds segments: from the rows of documents, and from earlier segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from itertools import pairwise, repeat
from typing import Final, NamedTuple

import numpy as np
from mnemesh_retrieval.ranking.scores import fingerprint, normalized
from mnemesh_retrieval.words.analysis import CJK_CHARACTER

from mnemesh_recall.model.ranking import SECTION, asked_length, body_length, key_of, microseconds, section_length
from mnemesh_recall.store.fulltext.segments import (
    BODY,
    COLUMNS,
    LABELS,
    SECTION_BITS,
    Array,
    Documents,
    Postings,
    Segment,
)

READ_CHARACTERS: Final = 8_000
"""The length of the part of a body that is read for the ranking."""


class QueryWords:
    """What a search looks for in documents that are not in a segment yet."""

    def __init__(self, query: str, terms: Collection[str]) -> None:
        self._terms = terms
        self._longest = max(normalized(query).split(), key=len, default="")

    def terms_in(self, row: DocumentRow) -> list[str]:
        """Returns the terms that may be in a document."""
        texts = SECTION.join((row.body, row.about, row.asked, row.beside, row.around))
        return [term for term in self._terms if term in texts]

    def fingerprint_of(self, search_text: str) -> int:
        """Returns the fingerprint of a text; 0 for one that cannot equal the query, which takes less time."""
        # Normalization leaves the words of a text as they are, unless other characters than those of ASCII change.
        is_near = self._longest in search_text or not search_text.isascii()
        return _fingerprint(search_text) if is_near else 0


class DocumentRow(NamedTuple):
    """A document of the full-text index with the fields of its message that searches filter by."""

    row_id: int
    id: str
    conversation_id: str | None
    role: str
    speaker: str | None
    sender_id: str | None
    created_at: datetime
    search_text: str
    body: str
    asked: str
    beside: str
    around: str
    about: str
    before_id: str | None
    after_id: str | None
    ends_in_question: bool

    @property
    def received(self) -> tuple[str, str, str, str, str]:
        """The texts of the sections of neighbours, from ASKED on."""
        before, _, after = self.beside.partition(SECTION)
        second_before, _, second_after = self.around.partition(SECTION)
        return self.asked, before, after, second_before, second_after


def built(rows: Sequence[DocumentRow], removed: Sequence[int] = (), query: QueryWords | None = None) -> Segment:
    """Returns the segment of documents, and of row ids that have none any more; with what a query needs, or all."""
    found: dict[str, tuple[list[int], list[int]]] = {}
    for place, row in enumerate(rows):
        terms = None if query is None else query.terms_in(row)
        if terms is not None and not terms:
            continue
        texts = (row.body[:READ_CHARACTERS], row.about, *row.received)
        for section, text in enumerate(texts):
            key = place << SECTION_BITS | section
            counted = _counts_of(text, terms)
            if section == BODY and len(row.body) > READ_CHARACTERS:
                counted = dict.fromkeys(_counts_of(row.body, terms), 0) | counted
            for term, count in counted.items():
                keys, times = found.setdefault(term, ([], []))
                keys.append(key)
                times.append(count)
    counts = np.fromiter((len(keys) for keys, _ in found.values()), np.uint32, len(found))
    all_keys = np.fromiter((key for keys, _ in found.values() for key in keys), np.uint32)
    all_times = np.fromiter((count for _, times in found.values() for count in times), np.uint16)
    documents = _described(rows, removed, _fingerprint if query is None else query.fingerprint_of)
    return Segment(documents, Postings(list(found), counts, all_keys, all_times))


def _described(rows: Sequence[DocumentRow], removed: Sequence[int], fingerprint_of: Callable[[str], int]) -> Documents:
    """Returns documents without their words."""
    labels: tuple[dict[str, int], ...] = tuple({"": 0} for _ in LABELS)
    found = []
    for row in rows:
        asked, *others = row.received
        texts = (row.conversation_id, row.role, row.speaker, row.sender_id, row.about)
        found.append(
            (
                row.row_id,
                key_of(row.id),
                key_of(row.before_id),
                key_of(row.after_id),
                microseconds(row.created_at),
                fingerprint_of(row.search_text),
                body_length(row.body[:READ_CHARACTERS], len(row.body)),
                (asked_length(asked), *map(section_length, others)),
                row.ends_in_question,
                *(numbers.setdefault(text or "", len(numbers)) for numbers, text in zip(labels, texts, strict=True)),
            )
        )
    columns = {
        name: np.array(values, kind.base).reshape(-1, *kind.shape)
        for (name, kind), values in zip(
            COLUMNS.items(), zip(*found, strict=True) if found else repeat(()), strict=False
        )
    }
    return Documents(columns, tuple(map(tuple, labels)), np.array(removed, np.int64))


def merged(segments: Sequence[Segment], masks: Sequence[Array], *, keep_removed: bool) -> Segment:
    """Returns one segment of successive ones, the oldest first.

    Args:
        segments: the segments.
        masks: the documents of each that are kept; see `documents.valid`.
        keep_removed: whether earlier segments may have documents that these replace or remove.
    """
    offsets = np.cumsum([0, *(int(mask.sum()) for mask in masks)])
    columns = {
        name: np.concatenate(
            [segment.documents.columns[name][mask] for segment, mask in zip(segments, masks, strict=True)]
        )
        for name in COLUMNS
    }
    labels: tuple[dict[str, int], ...] = tuple({"": 0} for _ in LABELS)
    terms: dict[str, int] = {}
    of_terms, keys, times = [], [], []
    for (documents, postings), mask, offset in zip(segments, masks, offsets[:-1], strict=True):
        for name, numbers, texts in zip(LABELS, labels, documents.labels, strict=True):
            part = columns[name][offset : offset + int(mask.sum())]
            codes = np.zeros(len(texts), part.dtype)
            for code in np.unique(part).tolist():  # No name of a removed document is kept.
                codes[code] = numbers.setdefault(texts[code], len(numbers))
            part[:] = codes[part]
        places = np.cumsum(mask) - 1 + offset
        numbers_of_terms = [terms.setdefault(term, len(terms)) for term in postings.terms]
        of_document = postings.keys >> SECTION_BITS
        kept = mask[of_document]
        of_terms.append(np.repeat(np.array(numbers_of_terms, np.int64), postings.counts)[kept])
        sections = postings.keys[kept] & ((1 << SECTION_BITS) - 1)
        keys.append((places[of_document[kept]] << SECTION_BITS) | sections)
        times.append(postings.times[kept])
    all_terms, all_keys = np.concatenate(of_terms), np.concatenate(keys)
    order = np.argsort(all_terms, kind="stable")  # The keys of a term ascend already.
    counts = np.bincount(all_terms, minlength=len(terms)).astype(np.uint32)
    present = counts > 0
    names = [term for term, is_present in zip(terms, present.tolist(), strict=True) if is_present]
    postings = Postings(
        names, counts[present], all_keys[order].astype(np.uint32), np.concatenate(times)[order].astype(np.uint16)
    )
    removed = np.unique(np.concatenate([segment.documents.removed for segment in segments]))
    removed = np.setdiff1d(removed, columns["row_id"]) if keep_removed else removed[:0]
    return Segment(Documents(columns, tuple(map(tuple, labels)), removed), postings)


def _fingerprint(text: str) -> int:
    return int(fingerprint(text), 16)


def _term_counts(text: str) -> dict[str, int]:
    """Returns how often each word and each pair of Kana or Han characters is in an analysed text."""
    words = text.split()
    counts: dict[str, int] = Counter(words)
    if not text.isascii():
        padded = f" {text} "
        for pair in dict.fromkeys(_pairs(words)):
            counts[pair] = padded.count(f" {pair} ")
    counts.pop(SECTION, None)
    return counts


def _counts_of(text: str, terms: Collection[str] | None) -> dict[str, int]:
    """Returns the same, for some terms in less time."""
    if terms is None:
        return _term_counts(text)
    near = [term for term in terms if term in text]
    if not near:
        return {}
    words, padded = text.split(), f" {text} "
    counts = {term: padded.count(f" {term} ") if " " in term else words.count(term) for term in near}
    return {term: count for term, count in counts.items() if count}


def _pairs(words: Sequence[str]) -> Iterator[str]:
    """Yields the pairs of successive Kana or Han characters, which queries search as phrases."""
    for first, second in pairwise(words):
        if CJK_CHARACTER.match(first) and CJK_CHARACTER.match(second):
            yield f"{first} {second}"
