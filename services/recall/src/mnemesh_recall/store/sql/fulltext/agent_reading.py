"""Reads what a search of one agent needs: its segments, the buckets of the terms, and its tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.fulltext.agent_words import AgentWords, OfTerms
from mnemesh_recall.store.sql.fulltext.documents import FulltextIndex
from mnemesh_recall.store.sql.word_segments import rows
from mnemesh_recall.store.sql.word_segments.building import QueryWords, built
from mnemesh_recall.store.sql.word_segments.cache import DocumentCache
from mnemesh_recall.store.sql.word_segments.changed import LEAST_CHANGES
from mnemesh_recall.store.sql.word_segments.format import bucket_of
from mnemesh_recall.store.sql.word_segments.rows import Overview

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
        (number, term): rows.row_key(row.id, bucket_of(term, row.buckets))
        for number, row in enumerate(segments)
        for term in terms
    }
    found = cache.find(row.id for row in segments)
    unread = [row for row in segments if row.id not in found]
    if unread:  # a first search of this agent
        rows.expect(conn, unread, keys.values())
    missing, buckets = rows.contents_of(conn, segments, set(keys.values()), found)
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
