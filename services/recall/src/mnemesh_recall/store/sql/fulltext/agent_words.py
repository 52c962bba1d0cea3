"""Searches of one agent in its segments and its tail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.model.word_scores import Candidate, ReceivedCount, TermCounts
from mnemesh_recall.store.sql.fulltext.documents import CandidateQuery, filters_rows
from mnemesh_recall.store.sql.word_segments.building import microseconds, time_of, valid
from mnemesh_recall.store.sql.word_segments.format import (
    ASKED,
    HEADER,
    LABELS,
    SECTION_BITS,
    Array,
    Documents,
    Occurrences,
    id_bytes,
    id_text,
)

MOST_MATCHES: Final = 1_000
"""The number of newest matches of a term, in messages and beside them, that are candidates if a term is common."""
MOST_EXACT: Final = 10
NEAR_SHARE: Final = 0.4
"""The weight of a term that only neighbours have, where one of the message itself weighs 1."""
_EXACT: Final = 1e6
"""The weight of a message that equals the query."""
_ABOUT: Final = LABELS.index("about")
_SECTION: Final = (1 << SECTION_BITS) - 1

OfTerms = dict[str, list[tuple[int, Occurrences]]]
"""For each term the numbers of the parts that have it, with its occurrences there."""


@dataclass(frozen=True, slots=True)
class _Matches:
    """The occurrences of a term: ascending places of documents, sections, and how often it occurs there."""

    places: Array
    sections: Array
    times: Array


_NO_MATCHES: Final = _Matches(*(np.empty(0, np.int64) for _ in range(3)))


class AgentWords:
    """The documents of an agent, and the occurrences of the terms of a query in them."""

    def __init__(
        self,
        size: int,
        scope: SearchScope,
        parts: Sequence[Documents],
        of_terms: OfTerms,
    ) -> None:
        self.size = size
        """The number of messages of the agent."""
        self._scope = scope
        self._parts = parts
        self._offsets: Array = np.cumsum([0, *(len(part.headers) for part in parts)])
        headers = [part.headers for part in parts]
        self._headers: Array = np.concatenate(headers) if parts else np.empty(0, HEADER)
        self._in_scope = self._scope_mask()
        self._matches = {term: self._matches_of(found) for term, found in of_terms.items()}

    def counts(self, limit: int) -> dict[str, int]:
        """Returns for each term in how many documents of the scope's conversation and roles it is, at most `limit`.

        Terms without a document are left out.
        """
        counted = {term: len(_different(found.places)) for term, found in self._matches.items()}
        return {term: min(count, limit) for term, count in counted.items() if count}

    def candidates(self, query: CandidateQuery, terms: Iterable[str]) -> list[Candidate]:
        """See FulltextIndex.candidates. The candidates have the counts of `terms`."""
        if not self._parts:
            return []
        score = np.zeros(len(self._headers))
        newest_only = not query.are_few and not filters_rows(self._scope)
        for term, weight in query.weights.items():
            found = self._matches[term]
            is_own = found.sections <= ASKED
            for chosen, share in ((is_own, 1.0), (~is_own, NEAR_SHARE)):
                places = _different(found.places[chosen])
                score[self._newest(places, MOST_MATCHES) if newest_only else places] += weight * share
        exact = self._exact(query.fingerprint)
        score[~self._in_filter] = 0.0
        score[exact] += _EXACT
        places = np.flatnonzero(score)
        row_ids = self._headers["row_id"]
        if len(places) > query.limit:
            places = places[np.lexsort((-row_ids[places], -score[places]))[: query.limit]]
        places = places[np.argsort(-row_ids[places])]
        return self._read(places, terms, has_word=True, exact=set(exact.tolist()))

    def read(self, ids: Sequence[str], leaders: Sequence[str], terms: Iterable[str]) -> list[Candidate]:
        """See FulltextIndex.read. The candidates have the counts of `terms`."""
        if not self._parts:
            return []
        at = self._places_of(id_bytes(id_) for id_ in leaders)
        followers = self._headers["after"][at[self._is_valid[at]]].tolist()
        places = self._places_of([*(id_bytes(id_) for id_ in ids), *followers])
        places = places[self._in_filter[places]]
        places = places[np.argsort(-self._headers["row_id"][places])]
        return self._read(places, terms, has_word=False, exact=set())

    def _places_of(self, ids: Iterable[bytes]) -> Array:
        """Returns the places of the documents with these ids."""
        wanted = {id_.rstrip(b"\0") for id_ in ids}
        # Numbers are compared in a fraction of the time that bytes take.
        first = np.array([int.from_bytes(id_[:8].ljust(8, b"\0"), "little") for id_ in wanted], np.uint64)
        near = np.flatnonzero(np.isin(self._first_halves, first))
        return near[[id_ in wanted for id_ in self._headers["id"][near].tolist()]] if len(near) else near

    @cached_property
    def _first_halves(self) -> Array:
        """The first eight bytes of each id as a number."""
        return np.ascontiguousarray(self._headers["id"]).view("<u8")[::2]

    def _newest(self, places: Array, count: int) -> Array:
        if len(places) <= count:
            return places
        row_ids = self._headers["row_id"][places]
        return places[np.argpartition(row_ids, -count)[-count:]]

    def _exact(self, fingerprint: str) -> Array:
        if not fingerprint:
            return np.empty(0, np.int64)
        equal = self._headers["fingerprint"] == np.uint64(int(fingerprint, 16))
        return self._newest(np.flatnonzero(equal & self._in_filter), MOST_EXACT)

    @cached_property
    def _is_valid(self) -> Array:
        return np.concatenate(valid(self._parts))

    def _scope_mask(self) -> Array:
        """Returns the mask of the documents of the scope's conversation and roles."""
        if not self._parts:
            return np.empty(0, np.bool_)
        mask, scope = self._is_valid, self._scope
        if scope.conversation_id is not None:
            mask = mask & self._has_label("conversation", [scope.conversation_id])
        if scope.roles:
            mask = mask & self._has_label("role", [role.value for role in scope.roles])
        return mask

    @cached_property
    def _in_filter(self) -> Array:
        """The mask of the documents that match the scope."""
        mask, scope = self._in_scope, self._scope
        if scope.from_time is not None:
            mask = mask & (self._headers["time"] >= microseconds(scope.from_time))
        if scope.before_time is not None:
            mask = mask & (self._headers["time"] < microseconds(scope.before_time))
        if scope.exclude_ids:
            excluded = np.array([id_bytes(id_) for id_ in scope.exclude_ids], "S16")
            mask = mask & ~np.isin(self._headers["id"], excluded)
        if scope.speakers:
            mask = mask & self._has_label("speaker", [name.casefold() for name in scope.speakers])
        if scope.sender_ids:
            mask = mask & self._has_label("sender", scope.sender_ids)
        return mask

    def _has_label(self, name: str, texts: Iterable[str]) -> Array:
        wanted, field = set(texts) - {""}, LABELS.index(name)
        masks = []
        for part in self._parts:
            codes = [code for code, text in enumerate(part.labels[field]) if text in wanted]
            masks.append(np.isin(part.headers[name], np.array(codes, np.uint32)))
        return np.concatenate(masks)

    def _matches_of(self, found: Sequence[tuple[int, Occurrences]]) -> _Matches:
        """Returns the occurrences of a term in documents of the scope."""
        places = [self._offsets[number] + (keys >> SECTION_BITS).astype(np.int64) for number, (keys, _) in found]
        if not places:
            return _NO_MATCHES
        joined = np.concatenate(places)
        kept = self._in_scope[joined]
        sections = np.concatenate([keys & _SECTION for _, (keys, _) in found])
        times = np.concatenate([times for _, (_, times) in found])
        return _Matches(joined[kept], sections[kept], times[kept])

    def _read(self, places: Array, terms: Iterable[str], *, has_word: bool, exact: set[int]) -> list[Candidate]:
        counts = self._term_counts(places, terms)
        read: list[Candidate] = []
        abouts = self._abouts(places)
        for place, header, about, (own, received) in zip(
            places.tolist(), self._headers[places].tolist(), abouts, counts, strict=True
        ):
            _, id_, before, after, time, _, length, lengths, ends_in_question, *_ = header
            read.append(
                Candidate(
                    id=id_text(id_) or "",
                    body="",
                    body_characters=0,
                    about=about,
                    before_id=id_text(before),
                    after_id=id_text(after),
                    ends_in_question=ends_in_question,
                    created_at=time_of(time),
                    has_word=has_word,
                    is_exact=place in exact,
                    counts=TermCounts(own, received, length, lengths),
                )
            )
        return read

    def _term_counts(self, places: Array, terms: Iterable[str]) -> list[tuple[dict[str, int], list[ReceivedCount]]]:
        """Returns how often the terms occur in documents, and in what their neighbours share."""
        found: list[tuple[dict[str, int], list[ReceivedCount]]] = [({}, []) for _ in range(len(places))]
        numbers = np.full(len(self._headers), -1)
        numbers[places] = np.arange(len(places))
        for term in terms:
            matches = self._matches[term]
            chosen = numbers[matches.places]
            is_chosen = (chosen >= 0) & (matches.times > 0)
            columns = (chosen, matches.sections, matches.times)
            for number, section, times in zip(*(column[is_chosen].tolist() for column in columns), strict=True):
                own, received = found[number]
                if section < ASKED:  # the text, the speaker and the day
                    own[term] = own.get(term, 0) + times
                else:
                    received.append((section - ASKED, term, times))
        return found

    def _abouts(self, places: Array) -> list[str]:
        """Returns the speaker and the day of documents."""
        texts = [part.labels[_ABOUT] for part in self._parts]
        numbers = np.searchsorted(self._offsets, places, side="right") - 1
        codes = self._headers["about"][places]
        return [texts[number][code] for number, code in zip(numbers.tolist(), codes.tolist(), strict=True)]


def _different(places: Array) -> Array:
    """Returns the different ones of ascending places."""
    different: Array = places[np.diff(places, prepend=-1) != 0]
    return different
