"""Searches of one agent in its segments and its tail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import sqlalchemy as sa

from mnemesh_recall.model.ranking import RECEIVED_SECTIONS, Candidates, Key, key_of, microseconds
from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.fulltext import segment_rows
from mnemesh_recall.store.fulltext.documents import CandidateQuery, FulltextIndex, filters_rows
from mnemesh_recall.store.fulltext.segment_building import QueryWords, built
from mnemesh_recall.store.fulltext.segment_rows import LEAST_CHANGES, DocumentCache, Overview
from mnemesh_recall.store.fulltext.segments import (
    ASKED,
    SECTION_BITS,
    Array,
    Documents,
    JoinedDocuments,
    Occurrences,
    bucket_of,
    keys_of,
)

MOST_MATCHES: Final = 1_000
"""The number of newest matches of a term, in messages and beside them, that are candidates if a term is common."""
MOST_EXACT: Final = 10
NEAR_SHARE: Final = 0.4
"""The weight of a term that only neighbours have, where one of the message itself weighs 1."""
_EXACT: Final = 1e6
"""The weight of a message that equals the query."""
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
        self._documents = JoinedDocuments(parts)
        self._in_scope = self._scope_mask()
        self._matches = {term: self._matches_of(found) for term, found in of_terms.items()}

    def counts(self, limit: int) -> dict[str, int]:
        """Returns for each term in how many documents of the scope's conversation and roles it is, at most `limit`.

        Terms without a document are left out.
        """
        counted = {term: len(_different(found.places)) for term, found in self._matches.items()}
        return {term: min(count, limit) for term, count in counted.items() if count}

    def candidates(self, query: CandidateQuery, terms: Sequence[str]) -> Candidates:
        """See FulltextIndex.candidates. The candidates have the counts of `terms`."""
        score = np.zeros(len(self._documents))
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
        row_ids = self._documents.column("row_id")
        if len(places) > query.limit:
            places = places[np.lexsort((-row_ids[places], -score[places]))[: query.limit]]
        places = places[np.argsort(-row_ids[places])]
        return self._read(places, terms, has_word=True, exact=exact)

    def read(self, keys: Sequence[Key], leaders: Sequence[Key], terms: Sequence[str]) -> Candidates:
        """See FulltextIndex.read. The candidates have the counts of `terms`."""
        documents = self._documents
        at = documents.places_of(leaders)
        followers = documents.chosen(at[documents.is_valid[at]]).keys("after")
        places = documents.places_of([*keys, *followers])
        places = places[self._in_filter[places]]
        places = places[np.argsort(-documents.column("row_id")[places])]
        return self._read(places, terms, has_word=False, exact=places[:0])

    def row_ids(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Returns the row ids of the messages with these ids, as far as they are documents."""
        at = self._documents.places_of(keys)
        row_ids = self._documents.column("row_id")[at].tolist()
        return dict(zip(keys_of(self._documents.column("id")[at]), row_ids, strict=True))

    def _newest(self, places: Array, count: int) -> Array:
        if len(places) <= count:
            return places
        row_ids = self._documents.column("row_id")[places]
        return places[np.argpartition(row_ids, -count)[-count:]]

    def _exact(self, fingerprint: str) -> Array:
        if not fingerprint:
            return np.empty(0, np.int64)
        equal = self._documents.column("fingerprint") == np.uint64(int(fingerprint, 16))
        return self._newest(np.flatnonzero(equal & self._in_filter), MOST_EXACT)

    def _scope_mask(self) -> Array:
        """Returns the mask of the documents of the scope's conversation and roles."""
        mask, scope = self._documents.is_valid, self._scope
        if scope.conversation_id is not None:
            mask = mask & self._documents.has_label("conversation", [scope.conversation_id])
        if scope.roles:
            mask = mask & self._documents.has_label("role", [role.value for role in scope.roles])
        return mask

    @cached_property
    def _in_filter(self) -> Array:
        """The mask of the documents that match the scope."""
        mask, scope = self._in_scope, self._scope
        if scope.from_time is not None:
            mask = mask & (self._documents.column("time") >= microseconds(scope.from_time))
        if scope.before_time is not None:
            mask = mask & (self._documents.column("time") < microseconds(scope.before_time))
        if scope.exclude_ids:
            mask = mask.copy()
            mask[self._documents.places_of(key_of(id_) for id_ in scope.exclude_ids)] = False
        if scope.speakers:
            mask = mask & self._documents.has_label("speaker", [name.casefold() for name in scope.speakers])
        if scope.sender_ids:
            mask = mask & self._documents.has_label("sender", scope.sender_ids)
        return mask

    def _matches_of(self, found: Sequence[tuple[int, Occurrences]]) -> _Matches:
        """Returns the occurrences of a term in documents of the scope."""
        offsets = self._documents.offsets
        places = [offsets[number] + (keys >> SECTION_BITS).astype(np.int64) for number, (keys, _) in found]
        if not places:
            return _NO_MATCHES
        joined = np.concatenate(places)
        kept = self._in_scope[joined]
        sections = np.concatenate([keys & _SECTION for _, (keys, _) in found])
        times = np.concatenate([times for _, (_, times) in found])
        return _Matches(joined[kept], sections[kept], times[kept])

    def _read(self, places: Array, terms: Sequence[str], *, has_word: bool, exact: Array) -> Candidates:
        own, received = self._term_counts(places, terms)
        chosen = self._documents.chosen(places)
        return Candidates(
            keys=chosen.keys("id"),
            before=chosen.keys("before"),
            after=chosen.keys("after"),
            abouts=chosen.abouts(),
            asks=chosen.column("ends_in_question"),
            times=chosen.column("time"),
            has_word=np.full(len(places), has_word),
            is_exact=np.isin(places, exact) if len(exact) else np.zeros(len(places), np.bool_),
            lengths=chosen.column("length"),
            received_lengths=chosen.column("received").astype(np.float64),
            own=own,
            received=received,
        )

    def _term_counts(self, places: Array, terms: Sequence[str]) -> tuple[Array, Array]:
        """Returns how often the terms occur in documents, and in what their neighbours share; see Candidates."""
        own = np.zeros((len(places), len(terms)))
        received = np.zeros((len(places), RECEIVED_SECTIONS, len(terms)))
        rows = np.full(len(self._documents), -1)
        rows[places] = np.arange(len(places))
        for column, term in enumerate(terms):
            matches = self._matches[term]
            chosen = rows[matches.places]
            is_own = matches.sections < ASKED  # the text, the speaker and the day
            in_own, in_received = (chosen >= 0) & is_own, (chosen >= 0) & ~is_own
            np.add.at(own[:, column], chosen[in_own], matches.times[in_own])
            sections = matches.sections[in_received] - ASKED
            received[chosen[in_received], sections, column] = matches.times[in_received]
        return own, received


def _different(places: Array) -> Array:
    """Returns the different ones of ascending places."""
    if len(places) < 2:
        return places
    is_first = np.empty(len(places), np.bool_)
    is_first[0] = True
    np.not_equal(places[1:], places[:-1], out=is_first[1:])
    return places[is_first]


MOST_TAIL: Final = 256
"""The longest tail that a search reads. An agent with a longer one is searched in the full-text index."""
LONG_TAIL: Final = 128
"""The length of a tail that is looked at again, because the one who wrote it may have missed it."""


def open_agent(
    conn: sa.Connection,
    cache: DocumentCache,
    index: FulltextIndex,
    scope: SearchScope,
    overview: Overview,
    query: str,
    terms: Sequence[str],
) -> AgentWords | None:
    """Reads what a search of an agent needs, given what was read first.

    Returns:
        The words; None if the tail is too long, because the agent is not indexed yet.

    Raises:
        SegmentsReplaced: see `rows.contents_of`.
    """
    if overview.size is None:
        return AgentWords(0, scope, [], {})
    if len(overview.tail) > LONG_TAIL:
        assert scope.agent_id is not None  # noqa: S101 - an overview is of an agent
        index.changed.add(scope.agent_id, LEAST_CHANGES)
    if len(overview.tail) > MOST_TAIL:
        return None
    segments = overview.segments
    keys = {
        (number, term): segment_rows.row_key(row.id, bucket_of(term, row.buckets))
        for number, row in enumerate(segments)
        for term in terms
    }
    found = cache.find(row.id for row in segments)
    unread = [row for row in segments if row.id not in found]
    if unread:  # a first search of this agent
        segment_rows.expect(conn, unread, keys.values())
    missing, buckets = segment_rows.contents_of(conn, segments, set(keys.values()), found)
    cache.add(missing)
    of_terms: OfTerms = {term: [] for term in terms}
    for (number, term), key in keys.items():
        if key in buckets and (occurrences := buckets[key].of(term)) is not None:
            of_terms[term].append((number, occurrences))
    documents = [found.get(row.id) or missing[row.id] for row in segments]
    if overview.tail:
        live = index.document_rows(conn, overview.tail)
        existing = {row.row_id for row in live}
        tail = built(live, [row_id for row_id in overview.tail if row_id not in existing], QueryWords(query, terms))
        for term in terms:
            if (occurrences := tail.postings.of(term)) is not None:
                of_terms[term].append((len(documents), occurrences))
        documents.append(tail.documents)
    return AgentWords(overview.size, scope, documents, of_terms)
