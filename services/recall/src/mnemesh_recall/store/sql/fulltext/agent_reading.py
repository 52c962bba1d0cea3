"""Reads what a search of one agent needs: its segments, the buckets of the terms, and its tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.fulltext.agent_words import AgentWords, OfTerms
from mnemesh_recall.store.sql.fulltext.documents import FulltextIndex
from mnemesh_recall.store.sql.word_segments import rows
from mnemesh_recall.store.sql.word_segments.building import built
from mnemesh_recall.store.sql.word_segments.cache import DocumentCache
from mnemesh_recall.store.sql.word_segments.changed import LEAST_CHANGES
from mnemesh_recall.store.sql.word_segments.format import bucket_of

MOST_TAIL: Final = 256
"""The longest tail that a search reads. An agent with a longer one is searched in the full-text index."""
LONG_TAIL: Final = 128
"""The length of a tail that is looked at again, because the one who wrote it may have missed it."""


def open_agent(
    conn: sa.Connection,
    cache: DocumentCache,
    index: FulltextIndex,
    organization_id: str,
    scope: SearchScope,
    terms: Sequence[str],
) -> AgentWords | None:
    """Reads what a search of an agent needs.

    Returns:
        The words; None if the tail is too long, because the agent is not indexed yet.
    """
    agent_id = scope.agent_id
    assert agent_id is not None  # noqa: S101 - the caller checks it
    size = rows.message_count(conn, organization_id, agent_id)
    if size is None:
        return AgentWords(0, scope, [], {})
    tail_ids = rows.tail(conn, agent_id, MOST_TAIL + 1)
    if len(tail_ids) > LONG_TAIL:
        index.changed.add(agent_id, LEAST_CHANGES)
    if len(tail_ids) > MOST_TAIL:
        return None
    segments = rows.segments_of(conn, agent_id)
    keys = {
        (number, term): rows.row_key(row.id, bucket_of(term, row.buckets))
        for number, row in enumerate(segments)
        for term in terms
    }
    found = cache.find(row.id for row in segments)
    unread = [row for row in segments if row.id not in found]
    if unread:  # a first search of this agent
        rows.expect(conn, unread, keys.values())
    missing = rows.documents_of(conn, [row.id for row in unread])
    cache.add(missing)
    buckets = rows.buckets_of(conn, set(keys.values()))
    of_terms: OfTerms = {term: [] for term in terms}
    for (number, term), key in keys.items():
        if key in buckets and (occurrences := buckets[key].of(term)) is not None:
            of_terms[term].append((number, occurrences))
    documents = [found.get(row.id) or missing[row.id] for row in segments]
    if tail_ids:
        live = index.document_rows(conn, tail_ids)
        existing = {row.row_id for row in live}
        tail = built(live, [row_id for row_id in tail_ids if row_id not in existing], only=terms)
        for term in terms:
            if (occurrences := tail.postings.of(term)) is not None:
                of_terms[term].append((len(documents), occurrences))
        documents.append(tail.documents)
    return AgentWords(size, scope, documents, of_terms)
