"""The SQL conditions of lists and searches of episodes and facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from mnemesh_recall.model.episode_operations import EpisodeFilter, FactFilter
from mnemesh_recall.model.episodes import Scope
from mnemesh_recall.store.sql.episode_rows import EPISODE, MESSAGE, TAG, TURN, Condition, turn_link
from mnemesh_recall.store.sql.episode_tables import episodes, facts, memory_links

_e, _f, _l = episodes.c, facts.c, memory_links.c


def episode_conditions(organization_id: str, filter_: EpisodeFilter) -> Iterator[Condition]:
    """Yields the conditions of a filter of episodes."""
    yield _e.organization_id == organization_id
    yield from _shared(episodes, filter_.scopes, filter_.tags_any, filter_.tags_all, filter_.message_id)
    if filter_.turn_id is not None and filter_.agent_id is not None:
        yield _linked(_e.id, TURN, [turn_link(filter_.agent_id, filter_.turn_id)])
    elif filter_.agent_id is not None:
        prefix = turn_link(filter_.agent_id, "")
        yield _e.id.in_(
            sa.select(_l.memory_id).where(_l.kind == TURN, _l.value >= prefix, _l.value < prefix[:-1] + "0")
        )
    if filter_.known_at is not None:
        yield _e.created_at <= filter_.known_at
    if filter_.from_time is not None:
        yield sa.func.coalesce(_e.ended_at, _e.started_at) >= filter_.from_time
    if filter_.before_time is not None:
        yield sa.func.coalesce(_e.started_at, _e.ended_at) < filter_.before_time


def fact_conditions(organization_id: str, filter_: FactFilter, now: datetime) -> Iterator[Condition]:
    """Yields the conditions of a filter of facts."""
    yield _f.organization_id == organization_id
    yield from _shared(facts, filter_.scopes, filter_.tags_any, filter_.tags_all, filter_.message_id)
    if filter_.min_confidence is not None:
        yield _f.confidence >= filter_.min_confidence
    if filter_.episode_id is not None:
        yield _linked(_f.id, EPISODE, [filter_.episode_id])
    known_at = filter_.known_at or now
    yield _f.created_at <= known_at
    if not filter_.include_invalid:
        yield from valid(filter_.valid_at or now, known_at, filter_.valid_since)


def valid(valid_at: datetime, known_at: datetime, since: datetime | None = None) -> Iterator[Condition]:
    """Yields the conditions that a fact is valid at one time, by the knowledge of another time.

    With `since`, it is valid at any time from `since` to `valid_at`.
    """
    yield sa.or_(_f.valid_from.is_(None), _f.valid_from <= valid_at)
    # Before it was closed, the fact was known to end as it was first written.
    known_end: sa.ColumnElement[Any] = sa.case((_f.closed_at > known_at, _f.first_invalid_at), else_=_f.invalid_at)
    yield sa.or_(known_end.is_(None), known_end > (since or valid_at))
    if since is not None:
        # A fact that ended when it started was never valid.
        yield sa.or_(known_end.is_(None), _f.valid_from.is_(None), known_end > _f.valid_from)


def in_scopes(table: sa.Table, scopes: Sequence[Scope]) -> Condition:
    """Returns the condition that the scope of a row is one of `scopes`."""
    column = table.c
    return sa.or_(*(sa.and_(column.scope_kind == scope.kind.value, column.scope_id == scope.id) for scope in scopes))


def _shared(
    table: sa.Table,
    scopes: Sequence[Scope],
    tags_any: Sequence[str],
    tags_all: Sequence[str],
    message_id: str | None,
) -> Iterator[Condition]:
    if scopes:
        yield in_scopes(table, scopes)
    if tags_any:
        yield _linked(table.c.id, TAG, tags_any)
    for tag in tags_all:
        yield _linked(table.c.id, TAG, [tag])
    if message_id is not None:
        yield _linked(table.c.id, MESSAGE, [message_id])


def _linked(id_: sa.ColumnElement[str], kind: str, values: Sequence[str]) -> Condition:
    return id_.in_(sa.select(_l.memory_id).where(_l.kind == kind, _l.value.in_(values)))
