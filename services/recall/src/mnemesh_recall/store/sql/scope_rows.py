"""Reads of the scopes of episodes and facts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.sql.pages import paginate

from mnemesh_recall.model.episode_operations import ScopeSummary
from mnemesh_recall.model.episodes import Scope, ScopeKind
from mnemesh_recall.store.sql.episode_filters import valid
from mnemesh_recall.store.sql.episode_tables import episodes, facts


def list_scopes(
    conn: sa.Connection, organization_id: str, name_prefix: str | None, now: datetime, page: PageQuery
) -> Page[ScopeSummary]:
    """See EpisodeStore.list_scopes."""
    memories = sa.union_all(
        _counts(episodes, organization_id, sa.literal(1), sa.literal(0)),
        _counts(facts, organization_id, sa.literal(0), sa.case((sa.and_(*valid(now, now)), 1), else_=0)),
    ).subquery("memories")
    m = memories.c
    scopes = (
        sa.select(
            m.scope_kind,
            m.scope_id,
            sa.func.sum(m.episode_count).label("episode_count"),
            sa.func.sum(m.fact_count).label("fact_count"),
            sa.func.max(m.updated_at).label("updated_at"),
        )
        .group_by(m.scope_kind, m.scope_id)
        .subquery("scopes")
    )
    statement = sa.select(scopes)
    if name_prefix is not None:
        named = scopes.c.scope_kind == ScopeKind.NAME.value
        statement = statement.where(named, scopes.c.scope_id.startswith(name_prefix, autoescape=True))
    visible = scopes.c.scope_id.is_not(None)
    return paginate(conn, statement, page, key=scopes.c.scope_kind, id=scopes.c.scope_id, scope=visible).map(
        _summary_from_row
    )


def _counts(table: sa.Table, organization_id: str, episode_count: Any, fact_count: Any) -> sa.Select[Any]:
    column = table.c
    return sa.select(
        column.scope_kind,
        column.scope_id,
        episode_count.label("episode_count"),
        fact_count.label("fact_count"),
        column.updated_at,
    ).where(column.organization_id == organization_id)


def _summary_from_row(row: sa.Row[Any]) -> ScopeSummary:
    scope = Scope(ScopeKind(row.scope_kind), row.scope_id)
    return ScopeSummary(scope, int(row.episode_count), int(row.fact_count), row.updated_at)
