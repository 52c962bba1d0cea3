"""Writes of episodes and facts inside a transaction. The decisions are in model/facts.py."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.ids import IdSource

from mnemesh_recall.model.episode_operations import (
    AddFact,
    ConfirmFact,
    EpisodeCommit,
    FactOperation,
    InvalidateFact,
    NewEpisode,
    NewFact,
    SupersedeFact,
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind, text_key
from mnemesh_recall.model.facts import (
    confirmed_fact,
    created_fact,
    invalidated_fact,
    require_open,
    required_scope,
    superseded_fact,
    with_source_episode,
)
from mnemesh_recall.model.leases import next_epoch
from mnemesh_recall.store.sql import episode_rows, windows
from mnemesh_recall.store.sql.episode_codec import fact_from_row
from mnemesh_recall.store.sql.episode_filters import in_scopes, valid
from mnemesh_recall.store.sql.episode_tables import facts
from mnemesh_recall.store.sql.tables import messages
from mnemesh_recall.store.sql.transaction import Transaction

_f, _m = facts.c, messages.c
_TIME_SPAN: Final = sa.select(sa.func.min(_m.created_at), sa.func.max(_m.created_at))


def commit(tx: Transaction, request: EpisodeCommit, ids: IdSource) -> tuple[Episode | None, list[Fact]]:
    """See EpisodeStore.commit_episode."""
    if request.conversation_id is not None:
        _check_lease(tx, request.conversation_id, request)
    scope, episode = request.scope, None
    if request.episode is not None:
        scope = required_scope(request.episode.scope or scope, "episode.scope")
        episode = _add_episode(tx, request.episode, scope, ids)
    results = []
    for index, operation in enumerate(request.operations):
        complete = operation if episode is None else with_source_episode(operation, episode)
        results.append(apply(tx, complete, scope, ids, f"operations[{index}]"))
    return episode, results


def apply(tx: Transaction, operation: FactOperation, scope: Scope | None, ids: IdSource, field: str) -> Fact:
    """Runs one operation. Returns the fact that it added, closed or confirmed; for a supersede, the new fact."""
    match operation:
        case AddFact(new):
            return add(tx, new, required_scope(new.scope or scope, f"{field}.add.scope"), ids)[0]
        case SupersedeFact():
            return supersede(tx, operation, ids, f"{field}.supersede")[0]
        case InvalidateFact():
            return invalidate(tx, operation)
        case ConfirmFact():
            return confirm(tx, operation)


def add(tx: Transaction, new: NewFact, scope: Scope, ids: IdSource) -> tuple[Fact, bool]:
    """Adds a fact, or confirms the valid fact with the same text. Returns the fact, and whether it existed."""
    owner = episode_rows.owner_of(tx, scope)
    existing = _find_same(tx, scope, new.text)
    if existing is not None:
        fact = confirmed_fact(existing, new.source, new.confidence, tx.now)
        episode_rows.update(tx, fact)
        return fact, True
    fact = created_fact(new, scope, ids.new("fact"), tx.now)
    episode_rows.insert(tx, fact, owner)
    return fact, False


def supersede(tx: Transaction, operation: SupersedeFact, ids: IdSource, field: str) -> tuple[Fact, Fact]:
    """Closes a fact in favour of a new one. Returns the new fact and the closed one."""
    old = episode_rows.read_fact(tx.conn, tx.organization_id, operation.fact_id)
    fact, closed = superseded_fact(old, operation.fact, ids.new("fact"), tx.now, field)
    owner = episode_rows.owner_of(tx, old.scope)
    episode_rows.insert(tx, fact, owner)
    episode_rows.update(tx, closed)
    return fact, closed


def invalidate(tx: Transaction, operation: InvalidateFact) -> Fact:
    """Closes a fact. A fact that is closed for the same time is unchanged."""
    old = episode_rows.read_fact(tx.conn, tx.organization_id, operation.fact_id)
    closed = invalidated_fact(old, operation, tx.now)
    if closed is not old:
        episode_rows.owner_of(tx, old.scope)
        episode_rows.update(tx, closed)
    return closed


def confirm(tx: Transaction, operation: ConfirmFact) -> Fact:
    """Adds a source, and possibly a new confidence, to an open fact."""
    fact = episode_rows.read_fact(tx.conn, tx.organization_id, operation.fact_id)
    require_open(fact)
    confirmed = confirmed_fact(fact, operation.source, operation.confidence, tx.now)
    episode_rows.update(tx, confirmed)
    return confirmed


def _find_same(tx: Transaction, scope: Scope, text: str) -> Fact | None:
    """Returns the open, valid fact of the scope with the same text."""
    found = tx.conn.execute(
        sa.select(facts)
        .where(
            _f.organization_id == tx.organization_id,
            in_scopes(facts, [scope]),
            _f.text_key == text_key(text),
            _f.closed_at.is_(None),
            *valid(tx.now, tx.now),
        )
        .order_by(_f.row_id)
        .limit(1)
    ).first()
    return None if found is None else fact_from_row(found)


def _add_episode(tx: Transaction, new: NewEpisode, scope: Scope, ids: IdSource) -> Episode:
    owner = episode_rows.owner_of(tx, scope)
    started, ended = _time_span(tx, new, scope)
    episode = Episode(
        id=ids.new("episode"),
        scope=scope,
        summary=new.summary,
        created_at=tx.now,
        updated_at=tx.now,
        turn_ids=new.turn_ids,
        tags=new.tags,
        salience=new.salience,
        source=new.source,
        started_at=started or new.started_at,
        ended_at=ended or new.ended_at,
        metadata=new.metadata,
        extra=new.extra,
    )
    episode_rows.insert(tx, episode, owner)
    return episode


def _time_span(tx: Transaction, new: NewEpisode, scope: Scope) -> tuple[datetime | None, datetime | None]:
    """Returns the times of the first and the last message of an episode, by its message ids and turn ids."""
    conditions: list[sa.ColumnElement[bool]] = []
    if new.source.message_ids:
        conditions.append(_m.id.in_(new.source.message_ids))
    agent_id = new.source.agent_id or (scope.id if scope.kind is ScopeKind.AGENT else None)
    if new.turn_ids and agent_id is not None:
        conditions.append(sa.and_(_m.turn_id.in_(new.turn_ids), _m.agent_id == agent_id))
    if not conditions:
        return None, None
    owned = _m.organization_id == tx.organization_id
    started, ended = tx.conn.execute(_TIME_SPAN.where(owned, sa.or_(*conditions))).one()
    return started, ended


def _check_lease(tx: Transaction, conversation_id: str, request: EpisodeCommit) -> None:
    state = windows.read_state(tx.conn, tx.organization_id, conversation_id)
    epoch = next_epoch(conversation_id, request.lease, state.epoch)
    if epoch > state.epoch:
        windows.update_epoch(tx.conn, conversation_id, epoch)
