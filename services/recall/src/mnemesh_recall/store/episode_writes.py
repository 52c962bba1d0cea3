"""Writes of episodes and facts inside a transaction. The decisions are in model/facts.py."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from mnemesh_kit.ids import IdSource
from mnemesh_retrieval.words.analysis import analysed

from mnemesh_recall.errors import no_message
from mnemesh_recall.model.episodes import (
    AddFact,
    ConfirmFact,
    Episode,
    EpisodeCommit,
    Fact,
    FactOperation,
    InvalidateFact,
    NewEpisode,
    NewFact,
    RestoreFact,
    Scope,
    ScopeKind,
    SupersedeFact,
)
from mnemesh_recall.model.facts import (
    confirmed_fact,
    created_fact,
    invalidated_fact,
    replaced_fact,
    require_open,
    required_scope,
    restored_fact,
    superseded_fact,
    with_source_episode,
)
from mnemesh_recall.model.statements import Relation, relation, text_key
from mnemesh_recall.model.writers import next_epoch
from mnemesh_recall.store import episode_rows, windows
from mnemesh_recall.store.episode_rows import fact_from_row, in_scopes, valid
from mnemesh_recall.store.tables import facts, memory_terms, messages
from mnemesh_recall.store.transaction import Transaction

_f, _m, _t = facts.c, messages.c, memory_terms.c
_BATCH: Final = 500
_COMPARED_FACTS: Final = 20
_COMPARED_TERMS: Final = 200
_TIME_SPAN: Final = sa.select(sa.func.min(_m.created_at), sa.func.max(_m.created_at))


def commit(tx: Transaction, request: EpisodeCommit, ids: IdSource) -> tuple[Episode | None, list[Fact]]:
    """See EpisodeStore.commit_episode."""
    if request.requires_sources:
        _require_messages(tx, request.source_message_ids)
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
            return add(tx, new, required_scope(new.scope or scope, f"{field}.add.scope"), ids, merges=True)[0]
        case SupersedeFact():
            return supersede(tx, operation, ids, f"{field}.supersede")[0]
        case InvalidateFact():
            return invalidate(tx, operation)
        case ConfirmFact():
            return confirm(tx, operation)


def add(tx: Transaction, new: NewFact, scope: Scope, ids: IdSource, *, merges: bool = False) -> tuple[Fact, bool]:
    """Adds a fact, or confirms the valid fact with the same text. Returns the fact, and whether it existed.

    With `merges`, a valid fact that says the same in nearly the same words is confirmed, too.
    """
    owner = episode_rows.owner_of(tx, scope)
    existing = _find_same(tx, scope, new.text)
    if existing is None and merges and new.invalid_at is None:
        existing = _find_near(tx, scope, new.text)
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
    fact, closed = superseded_fact(old, operation.fact, ids.new("fact"), tx.now, field, operation.reason)
    owner = episode_rows.owner_of(tx, old.scope)
    episode_rows.insert(tx, fact, owner)
    episode_rows.update(tx, closed)
    return fact, closed


def invalidate(tx: Transaction, operation: InvalidateFact) -> Fact:
    """Closes a fact. A fact that is closed for the same time is unchanged."""
    old = episode_rows.read_fact(tx.conn, tx.organization_id, operation.fact_id)
    if operation.successor_id is not None:
        return _replace(tx, old, operation, operation.successor_id)
    closed = invalidated_fact(old, operation, tx.now)
    if closed is not old:
        episode_rows.owner_of(tx, old.scope)
        episode_rows.update(tx, closed)
    return closed


def _replace(tx: Transaction, old: Fact, operation: InvalidateFact, successor_id: str) -> Fact:
    """Closes a fact in favour of one that exists. A repeat changes nothing."""
    if old.superseded_by_id == successor_id:
        return old
    successor = episode_rows.read_fact(tx.conn, tx.organization_id, successor_id)
    closed, next_ = replaced_fact(old, successor, operation, tx.now)
    episode_rows.owner_of(tx, old.scope)
    # The successor may have a history of its own after it.
    tx.conn.execute(
        sa.update(facts)
        .where(_f.chain_id == successor.chain_id, _f.organization_id == tx.organization_id)
        .values(chain_id=old.chain_id)
    )
    episode_rows.update(tx, next_)
    episode_rows.update(tx, closed)
    return closed


def restore(tx: Transaction, operation: RestoreFact, ids: IdSource) -> tuple[Fact, Fact | None]:
    """States a closed fact again. Returns it, and the fact that it superseded."""
    closed = episode_rows.read_fact(tx.conn, tx.organization_id, operation.fact_id)
    of_chain = sa.select(facts).where(_f.chain_id == closed.chain_id, _f.organization_id == tx.organization_id)
    newest = fact_from_row(
        tx.conn.execute(of_chain.order_by(_f.closed_at.is_(None).desc(), _f.row_id.desc()).limit(1)).one()
    )
    fact, superseded = restored_fact(closed, newest, operation, ids.new("fact"), tx.now)
    if fact.id == newest.id:
        return fact, None
    owner = episode_rows.owner_of(tx, closed.scope)
    episode_rows.insert(tx, fact, owner)
    episode_rows.update(tx, superseded or replace(newest, superseded_by_id=fact.id, updated_at=tx.now))
    return fact, superseded


def confirm(tx: Transaction, operation: ConfirmFact) -> Fact:
    """Adds a source, and possibly a new confidence, to an open fact."""
    fact = episode_rows.read_fact(tx.conn, tx.organization_id, operation.fact_id)
    require_open(fact)
    confirmed = confirmed_fact(fact, operation.source, operation.confidence, tx.now)
    episode_rows.update(tx, confirmed)
    return confirmed


def _require_messages(tx: Transaction, message_ids: Collection[str]) -> None:
    """Raises NotFound if one of the messages does not exist."""
    ordered = sorted(message_ids)
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        found = set(
            tx.conn.execute(
                sa.select(_m.id).where(_m.id.in_(batch), _m.organization_id == tx.organization_id)
            ).scalars()
        )
        for message_id in batch:
            if message_id not in found:
                raise no_message(message_id)


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


def _find_near(tx: Transaction, scope: Scope, text: str) -> Fact | None:
    """Returns an open, valid fact of the scope that says the same in nearly the same words."""
    terms = sorted(set(analysed(text)[0]))
    candidates = (
        sa.select(_t.memory_id)
        .where(
            _t.organization_id == tx.organization_id,
            _t.kind == "fact",
            _t.scope_key == scope.key,
            _t.term.in_(terms[:_COMPARED_TERMS]),
        )
        .group_by(_t.memory_id)
        .order_by(sa.func.count().desc(), _t.memory_id)
        .limit(_COMPARED_FACTS)
    )
    found = tx.conn.execute(
        sa.select(facts)
        .where(_f.id.in_(candidates), _f.closed_at.is_(None), *valid(tx.now, tx.now))
        .order_by(_f.row_id)
    )
    near = (row for row in found if (compared := relation(row.text, text)) and compared[0] is Relation.NEAR)
    return next(map(fact_from_row, near), None)


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
