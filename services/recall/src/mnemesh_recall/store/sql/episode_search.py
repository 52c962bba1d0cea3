"""Word search among episodes and facts: the analysis and the ranking of messages over a plain index of terms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from mnemesh_recall.language.words import indexed
from mnemesh_recall.model.episode_operations import EpisodeFilter, FactFilter
from mnemesh_recall.model.episodes import Scope
from mnemesh_recall.store.sql.episode_codec import AnyRow
from mnemesh_recall.store.sql.episode_filters import in_scopes, of_episodes, of_facts
from mnemesh_recall.store.sql.episode_rows import Condition
from mnemesh_recall.store.sql.episode_tables import episodes, facts, memory_terms
from mnemesh_recall.store.sql.fulltext import ranking
from mnemesh_recall.store.sql.fulltext.documents import Candidate

Where = EpisodeFilter | FactFilter
_t = memory_terms.c


def table_of(where: Where) -> sa.Table:
    """What a filter looks through."""
    return episodes if isinstance(where, EpisodeFilter) else facts


def conditions(organization_id: str, where: Where, now: datetime) -> list[Condition]:
    """A filter as conditions on its table."""
    if isinstance(where, EpisodeFilter):
        return list(of_episodes(organization_id, where))
    return list(of_facts(organization_id, where, now))


def search(
    conn: sa.Connection, organization_id: str, where: Where, terms: Sequence[str], limit: int, now: datetime
) -> list[tuple[str, float]]:
    """See EpisodeStore.search_words."""
    held = _having(organization_id, where)
    holders = _holders(conn, held, terms)
    if not holders:
        return []
    size = _size(conn, organization_id, where)
    weights = {term: ranking.rarity(count, size) for term, count in holders.items()}
    telling = ranking.telling(holders, weights, size)
    most = max(ranking.MOST_CANDIDATES, 2 * limit)
    words = {word: weight for term, weight in telling.items() for word in term.split()}
    score: sa.ColumnElement[Any] = sa.func.sum(sa.case(words, value=_t.term, else_=0.0))
    found = (
        sa.select(_t.memory_id, score.label("score"))
        .where(*held, _t.term.in_(words))
        .group_by(_t.memory_id)
        .subquery("found")
    )
    table = table_of(where)
    said = table.c.summary if table is episodes else table.c.text
    rows = conn.execute(
        sa.select(table.c.id, said)
        .join_from(found, table, table.c.id == found.c.memory_id)
        .where(*conditions(organization_id, where, now))
        .order_by(found.c.score.desc(), table.c.row_id.desc())
        .limit(most)
    )
    return [item for item in ranking.ranked([_candidate(*row) for row in rows], weights) if item[1] > 0][:limit]


def newest(conn: sa.Connection, organization_id: str, where: Where, limit: int, now: datetime) -> list[AnyRow]:
    """The rows that were learned last, newest first."""
    table = table_of(where)
    order = (table.c.created_at.desc(), table.c.row_id.desc())
    chosen = sa.select(table).where(*conditions(organization_id, where, now)).order_by(*order).limit(limit)
    return list(conn.execute(chosen).all())


def _having(organization_id: str, where: Where) -> list[Condition]:
    kind = "episode" if isinstance(where, EpisodeFilter) else "fact"
    held: list[Condition] = [_t.organization_id == organization_id, _t.kind == kind]
    if where.scopes:
        held.append(_t.scope_key.in_([scope.key for scope in where.scopes]))
    return held


def _holders(conn: sa.Connection, held: Sequence[Condition], terms: Sequence[str]) -> dict[str, int]:
    """How many memories have each term; of a phrase, the most that can have it."""
    words = {word for term in terms for word in term.split()}
    counted = sa.select(_t.term, sa.func.count()).where(*held, _t.term.in_(words)).group_by(_t.term)
    counts: dict[str, int] = {row[0]: row[1] for row in conn.execute(counted)}
    bounds = {term: min(counts.get(word, 0) for word in term.split()) for term in terms if term.split()}
    return {term: count for term, count in bounds.items() if count}


def _size(conn: sa.Connection, organization_id: str, where: Where) -> int:
    table, scopes = table_of(where), tuple[Scope, ...](where.scopes)
    counted = sa.select(sa.func.count()).select_from(table).where(table.c.organization_id == organization_id)
    return int(conn.scalar(counted.where(in_scopes(table, scopes)) if scopes else counted) or 0)


READ_CHARACTERS: Final = 8_000
"""So much of a text is read for its rank."""


def _candidate(id_: str, text: str) -> Candidate:
    body = indexed(text, READ_CHARACTERS)
    return Candidate(id_, body, max(len(body), len(text) if len(text) > READ_CHARACTERS else 0), "", "", "")
