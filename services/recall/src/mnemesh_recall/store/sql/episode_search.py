"""Full-text search of episodes and facts: the text analysis and ranking of messages, over a table of terms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_retrieval.ranking.constants import DEFAULTS
from mnemesh_retrieval.ranking.scores import rarity
from mnemesh_retrieval.words.analysis import indexed, terms

from mnemesh_recall.model.candidates import Candidate, Candidates
from mnemesh_recall.model.episode_operations import EpisodeFilter, MemoryFilter
from mnemesh_recall.model.episodes import Scope
from mnemesh_recall.model.word_scores import word_scores
from mnemesh_recall.store.sql.episode_codec import AnyRow
from mnemesh_recall.store.sql.episode_filters import episode_conditions, fact_conditions, in_scopes
from mnemesh_recall.store.sql.episode_rows import Condition
from mnemesh_recall.store.sql.episode_tables import episodes, facts, memory_terms
from mnemesh_recall.store.sql.fulltext.selection import holders_of_words, selective_terms
from mnemesh_recall.store.sql.word_languages import stored_languages

_t = memory_terms.c


def table_of(filter_: MemoryFilter) -> sa.Table:
    """Returns the table that a filter applies to."""
    return episodes if isinstance(filter_, EpisodeFilter) else facts


def conditions(organization_id: str, filter_: MemoryFilter, now: datetime) -> list[Condition]:
    """Returns the conditions of a filter on its table."""
    if isinstance(filter_, EpisodeFilter):
        return list(episode_conditions(organization_id, filter_))
    return list(fact_conditions(organization_id, filter_, now))


def search(
    conn: sa.Connection, organization_id: str, filter_: MemoryFilter, query: str, limit: int, now: datetime
) -> list[tuple[str, float]]:
    """See EpisodeStore.search_fulltext."""
    term_conditions = _term_conditions(organization_id, filter_)
    own = terms(query, stored_languages(conn, organization_id))
    if not own:
        return []
    counts = holders_of_words(_message_counts(conn, term_conditions, tuple(own)), own)
    if not counts:
        return []
    size = _size(conn, organization_id, filter_)
    weights = {term: rarity(count, size) for term, count in counts.items()}
    selected = selective_terms(counts, weights, size)
    candidates = max(DEFAULTS.word_candidates, 2 * limit)
    words = {word: weight for term, weight in selected.items() for word in term.split()}
    score: sa.ColumnElement[Any] = sa.func.sum(sa.case(words, value=_t.term, else_=0.0))
    found = (
        sa.select(_t.memory_id, score.label("score"))
        .where(*term_conditions, _t.term.in_(words))
        .group_by(_t.memory_id)
        .subquery("found")
    )
    table = table_of(filter_)
    text = table.c.summary if table is episodes else table.c.text
    rows = conn.execute(
        sa.select(table.c.id, text)
        .join_from(found, table, table.c.id == found.c.memory_id)
        .where(*conditions(organization_id, filter_, now))
        .order_by(found.c.score.desc(), table.c.row_id.desc())
        .limit(candidates)
    )
    texts = [_candidate(*row) for row in rows]
    scores = word_scores(Candidates.of(texts, tuple(weights)), weights, DEFAULTS).tolist()
    scored = [(text.id, score) for text, score in zip(texts, scores, strict=True)]
    return sorted((item for item in scored if item[1] > 0), key=lambda item: -item[1])[:limit]


def newest(conn: sa.Connection, organization_id: str, filter_: MemoryFilter, limit: int, now: datetime) -> list[AnyRow]:
    """Returns the rows that were stored last, newest first."""
    table = table_of(filter_)
    order = (table.c.created_at.desc(), table.c.row_id.desc())
    statement = sa.select(table).where(*conditions(organization_id, filter_, now)).order_by(*order).limit(limit)
    return list(conn.execute(statement).all())


def _term_conditions(organization_id: str, filter_: MemoryFilter) -> list[Condition]:
    kind = "episode" if isinstance(filter_, EpisodeFilter) else "fact"
    conditions_: list[Condition] = [_t.organization_id == organization_id, _t.kind == kind]
    if filter_.scopes:
        conditions_.append(_t.scope_key.in_([scope.key for scope in filter_.scopes]))
    return conditions_


def _message_counts(conn: sa.Connection, term_conditions: Sequence[Condition], terms: Sequence[str]) -> dict[str, int]:
    """Returns the number of memories with each term. For a phrase it is the upper bound by its words."""
    words = {word for term in terms for word in term.split()}
    counted = sa.select(_t.term, sa.func.count()).where(*term_conditions, _t.term.in_(words)).group_by(_t.term)
    counts: dict[str, int] = {row[0]: row[1] for row in conn.execute(counted)}
    bounds = {term: min(counts.get(word, 0) for word in term.split()) for term in terms if term.split()}
    return {term: count for term, count in bounds.items() if count}


def _size(conn: sa.Connection, organization_id: str, filter_: MemoryFilter) -> int:
    table, scopes = table_of(filter_), tuple[Scope, ...](filter_.scopes)
    counted = sa.select(sa.func.count()).select_from(table).where(table.c.organization_id == organization_id)
    return int(conn.scalar(counted.where(in_scopes(table, scopes)) if scopes else counted) or 0)


READ_CHARACTERS: Final = 8_000
"""The length of the part of a text that is read for the ranking."""


def _candidate(id_: str, text: str) -> Candidate:
    body = indexed(text, READ_CHARACTERS)
    return Candidate(id_, body, max(len(body), len(text) if len(text) > READ_CHARACTERS else 0))
