"""The conditions by which lists and searches of episodes and facts are narrowed."""

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


def of_episodes(organization_id: str, wanted: EpisodeFilter) -> Iterator[Condition]:
    """What a list or a search of episodes asks for."""
    yield _e.organization_id == organization_id
    yield from _shared(episodes, wanted.scopes, wanted.tags_any, wanted.tags_all, wanted.message_id)
    if wanted.turn_id is not None and wanted.agent_id is not None:
        yield _linked(_e.id, TURN, [turn_link(wanted.agent_id, wanted.turn_id)])
    elif wanted.agent_id is not None:
        prefix = turn_link(wanted.agent_id, "")
        yield _e.id.in_(
            sa.select(_l.memory_id).where(_l.kind == TURN, _l.value >= prefix, _l.value < prefix[:-1] + "0")
        )
    if wanted.known_at is not None:
        yield _e.created_at <= wanted.known_at
    if wanted.from_time is not None:
        yield sa.func.coalesce(_e.ended_at, _e.started_at) >= wanted.from_time
    if wanted.before_time is not None:
        yield sa.func.coalesce(_e.started_at, _e.ended_at) < wanted.before_time


def of_facts(organization_id: str, wanted: FactFilter, now: datetime) -> Iterator[Condition]:
    """What a list or a search of facts asks for."""
    yield _f.organization_id == organization_id
    yield from _shared(facts, wanted.scopes, wanted.tags_any, wanted.tags_all, wanted.message_id)
    if wanted.min_confidence is not None:
        yield _f.confidence >= wanted.min_confidence
    if wanted.episode_id is not None:
        yield _linked(_f.id, EPISODE, [wanted.episode_id])
    known_at = wanted.known_at or now
    yield _f.created_at <= known_at
    if not wanted.include_invalid:
        yield from holding(wanted.valid_at or now, known_at)


def holding(valid_at: datetime, known_at: datetime) -> Iterator[Condition]:
    """The fact is true at one moment by what was known at the other."""
    yield sa.or_(_f.valid_from.is_(None), _f.valid_from <= valid_at)
    # Who did not know yet that it was closed believed that it ends as it was first written.
    known_end: sa.ColumnElement[Any] = sa.case((_f.closed_at > known_at, _f.first_invalid_at), else_=_f.invalid_at)
    yield sa.or_(known_end.is_(None), known_end > valid_at)


def in_scopes(table: sa.Table, scopes: Sequence[Scope]) -> Condition:
    """The row's scope is one of those."""
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
