"""Builds segments: from the rows of documents, and from earlier segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from mnemesh_retrieval.ranking.exact import fingerprint
from mnemesh_retrieval.words.cjk import CJK_CHARACTER

from mnemesh_recall.model.candidates import (
    SECTION,
    asked_length,
    body_length,
    key_of,
    microseconds,
    section_length,
)
from mnemesh_recall.store.sql.word_segments.columns import COLUMNS, LABELS, Array
from mnemesh_recall.store.sql.word_segments.documents import Documents
from mnemesh_recall.store.sql.word_segments.format import BODY, SECTION_BITS, Postings, Segment

READ_CHARACTERS: Final = 8_000
"""The length of the part of a body that is read for the ranking."""


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


def built(rows: Sequence[DocumentRow], removed: Sequence[int] = (), *, only: Collection[str] | None = None) -> Segment:
    """Returns the segment of documents, and of row ids that have none any more; with all terms, or `only` some."""

    def counts_of(text: str) -> dict[str, int]:
        return _term_counts(text) if only is None else _counts_of(text, only)

    found: dict[str, tuple[list[int], list[int]]] = {}
    for place, row in enumerate(rows):
        texts = (row.body[:READ_CHARACTERS], row.about, *row.received)
        for section, text in enumerate(texts):
            key = place << SECTION_BITS | section
            counted = counts_of(text)
            if section == BODY and len(row.body) > READ_CHARACTERS:
                counted = dict.fromkeys(counts_of(row.body), 0) | counted
            for term, count in counted.items():
                keys, times = found.setdefault(term, ([], []))
                keys.append(key)
                times.append(count)
    counts = np.fromiter((len(keys) for keys, _ in found.values()), np.uint32, len(found))
    all_keys = np.fromiter((key for keys, _ in found.values() for key in keys), np.uint32)
    all_times = np.fromiter((count for _, times in found.values() for count in times), np.uint16)
    return Segment(described(rows, removed), Postings(list(found), counts, all_keys, all_times))


def described(rows: Sequence[DocumentRow], removed: Sequence[int] = ()) -> Documents:
    """Returns documents without their words."""
    columns = {name: np.zeros(len(rows), kind) for name, kind in COLUMNS.items()}
    labels: tuple[dict[str, int], ...] = tuple({"": 0} for _ in LABELS)
    for place, row in enumerate(rows):
        asked, *others = row.received
        values = (
            row.row_id,
            key_of(row.id),
            key_of(row.before_id),
            key_of(row.after_id),
            microseconds(row.created_at),
            int(fingerprint(row.search_text), 16),
            body_length(row.body[:READ_CHARACTERS], len(row.body)),
            (asked_length(asked), *map(section_length, others)),
            row.ends_in_question,
        )
        texts = (row.conversation_id, row.role, row.speaker, row.sender_id, row.about)
        codes = (numbers.setdefault(text or "", len(numbers)) for numbers, text in zip(labels, texts, strict=True))
        for column, value in zip(columns.values(), (*values, *codes), strict=True):
            column[place] = value
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


def _counts_of(text: str, terms: Collection[str]) -> dict[str, int]:
    """Returns the same for some terms, in less time."""
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
