"""What is done to episodes and facts inside a transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import IdSource

from mnemesh_recall.errors import FactClosed, LeaseLost
from mnemesh_recall.model.episode_operations import (
    Add,
    Confirm,
    EpisodeCommit,
    Invalidate,
    NewEpisode,
    NewFact,
    Operation,
    Supersede,
)
from mnemesh_recall.model.episodes import Episode, Fact, Scope, Source, text_key
from mnemesh_recall.store.sql import episode_rows, windows
from mnemesh_recall.store.sql.episode_codec import to_fact
from mnemesh_recall.store.sql.episode_filters import holding, in_scopes
from mnemesh_recall.store.sql.episode_tables import facts
from mnemesh_recall.store.sql.tables import contexts, messages
from mnemesh_recall.store.sql.transaction import Transaction

_f, _m = facts.c, messages.c
_SPAN: Final = sa.select(sa.func.min(_m.created_at), sa.func.max(_m.created_at))


def commit(tx: Transaction, wanted: EpisodeCommit, ids: IdSource) -> tuple[Episode | None, list[Fact]]:
    """See EpisodeStore.commit_episode."""
    if wanted.conversation_id is not None:
        _hold_lease(tx, wanted.conversation_id, wanted.epoch)
    scope, episode = wanted.scope, None
    if wanted.episode is not None:
        given = wanted.episode.scope or scope
        episode = _add_episode(tx, wanted.episode, _required(given, "episode.scope"), ids)
        scope = episode.scope
    done = []
    for place, operation in enumerate(wanted.operations):
        drawn = operation if episode is None else _drawn_from(operation, episode)
        done.append(apply(tx, drawn, scope, ids, f"operations[{place}]"))
    return episode, done


def apply(tx: Transaction, operation: Operation, scope: Scope | None, ids: IdSource, field: str) -> Fact:
    """Does one operation; the fact that it added, closed or confirmed, of a supersede the new one."""
    match operation:
        case Add(new):
            return add(tx, new, _required(new.scope or scope, f"{field}.add.scope"), ids)[0]
        case Supersede():
            return supersede(tx, operation, ids, f"{field}.supersede")[0]
        case Invalidate():
            return invalidate(tx, operation)
        case Confirm():
            return confirm(tx, operation)


def add(tx: Transaction, new: NewFact, scope: Scope, ids: IdSource) -> tuple[Fact, bool]:
    """Adds a fact, or confirms the one that holds and says the same; whether that was so."""
    owner = episode_rows.owner_of(tx, scope)
    same = _same(tx, scope, new.text)
    if same is not None:
        return _confirmed(tx, same, new.source, new.confidence), True
    id_ = ids.new("fact")
    fact = _fresh(tx, new, scope, id_, chain_id=id_)
    episode_rows.insert(tx, fact, owner)
    return fact, False


def supersede(tx: Transaction, wanted: Supersede, ids: IdSource, field: str) -> tuple[Fact, Fact]:
    """Closes a fact in favour of a new one: the new one, and the closed one."""
    old = _open_fact(tx, wanted.fact_id)
    new = wanted.fact
    if new.scope not in (None, old.scope):
        raise InvalidArgument("A fact is superseded within its scope.", field=f"{field}.fact.scope")
    starts = new.valid_from or tx.now
    if new.invalid_at is not None and new.invalid_at <= starts:
        raise InvalidArgument("A fact must end after it starts.", field=f"{field}.fact.invalid_time")
    owner = episode_rows.owner_of(tx, old.scope)
    fact = _fresh(
        tx,
        replace(
            new,
            valid_from=starts,
            tags=new.tags or old.tags,
            confidence=old.confidence if new.confidence is None else new.confidence,
            salience=old.salience if new.salience is None else new.salience,
            metadata=old.metadata if new.metadata is None else new.metadata,
            extra=old.extra if new.extra is None else new.extra,
        ),
        old.scope,
        ids.new("fact"),
        chain_id=old.chain_id,
        supersedes_id=old.id,
    )
    episode_rows.insert(tx, fact, owner)
    ends = starts if old.invalid_at is None else min(starts, old.invalid_at)
    closed = replace(old.closed(invalid_at=ends, now=tx.now), superseded_by_id=fact.id)
    episode_rows.rewrite(tx, closed)
    return fact, closed


def invalidate(tx: Transaction, wanted: Invalidate) -> Fact:
    """Closes a fact; one that is closed for the same time stays as it is."""
    old = episode_rows.fact(tx.conn, tx.organization_id, wanted.fact_id)
    ends = wanted.invalid_at or tx.now
    if old.closed_at is not None:
        if old.invalid_at == ends:
            return old
        raise FactClosed(old.id, old.superseded_by_id)
    episode_rows.owner_of(tx, old.scope)
    closed = replace(
        old.closed(invalid_at=ends, now=tx.now), invalid_reason=wanted.reason, invalid_source=wanted.source
    )
    episode_rows.rewrite(tx, closed)
    return closed


def confirm(tx: Transaction, wanted: Confirm) -> Fact:
    """Adds to what a fact rests on."""
    return _confirmed(tx, _open_fact(tx, wanted.fact_id), wanted.source, wanted.confidence)


def _confirmed(tx: Transaction, fact: Fact, source: Source, confidence: float | None) -> Fact:
    confirmed = replace(
        fact,
        source=fact.source.joined(source),
        confidence=fact.confidence if confidence is None else confidence,
        updated_at=tx.now,
    )
    episode_rows.rewrite(tx, confirmed)
    return confirmed


def _open_fact(tx: Transaction, fact_id: str) -> Fact:
    fact = episode_rows.fact(tx.conn, tx.organization_id, fact_id)
    if fact.closed_at is not None:
        raise FactClosed(fact.id, fact.superseded_by_id)
    return fact


def _same(tx: Transaction, scope: Scope, text: str) -> Fact | None:
    """The fact of that text that holds, and was not closed for a later time."""
    found = tx.conn.execute(
        sa.select(facts)
        .where(
            _f.organization_id == tx.organization_id,
            in_scopes(facts, [scope]),
            _f.text_key == text_key(text),
            _f.closed_at.is_(None),
            *holding(tx.now, tx.now),
        )
        .order_by(_f.row_id)
        .limit(1)
    ).first()
    return None if found is None else to_fact(found)


def _fresh(
    tx: Transaction, new: NewFact, scope: Scope, id_: str, *, chain_id: str, supersedes_id: str | None = None
) -> Fact:
    return Fact(
        id=id_,
        scope=scope,
        text=new.text,
        created_at=tx.now,
        updated_at=tx.now,
        chain_id=chain_id,
        tags=new.tags,
        confidence=new.confidence,
        salience=new.salience,
        source=new.source,
        metadata=new.metadata,
        extra=new.extra,
        valid_from=new.valid_from,
        invalid_at=new.invalid_at,
        first_invalid_at=new.invalid_at,
        supersedes_id=supersedes_id,
    )


def _add_episode(tx: Transaction, new: NewEpisode, scope: Scope, ids: IdSource) -> Episode:
    owner = episode_rows.owner_of(tx, scope)
    started, ended = _span(tx, new, scope)
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


def _span(tx: Transaction, new: NewEpisode, scope: Scope) -> tuple[Any, Any]:
    """From the first to the last of the messages that an episode rests on, by their ids and its turns."""
    ways: list[sa.ColumnElement[bool]] = []
    if new.source.message_ids:
        ways.append(_m.id.in_(new.source.message_ids))
    agent_id = new.source.agent_id or (scope.id if scope.kind.value == "agent" else None)
    if new.turn_ids and agent_id is not None:
        ways.append(sa.and_(_m.turn_id.in_(new.turn_ids), _m.agent_id == agent_id))
    if not ways:
        return None, None
    started, ended = tx.conn.execute(_SPAN.where(_m.organization_id == tx.organization_id, sa.or_(*ways))).one()
    return started, ended


def _drawn_from(operation: Operation, episode: Episode) -> Operation:
    """The operation with the episode as the source of what it adds, where it names none."""
    if isinstance(operation, Add | Supersede) and operation.fact.source.episode_id is None:
        source = replace(operation.fact.source, episode_id=episode.id)
        return replace(operation, fact=replace(operation.fact, source=source))
    return operation


def _hold_lease(tx: Transaction, conversation_id: str, epoch: int | None) -> None:
    state = windows.head(tx.conn, tx.organization_id, conversation_id)
    if epoch is None:
        return
    if epoch < state.epoch:
        raise LeaseLost(conversation_id, state.epoch)
    if epoch > state.epoch:
        column = contexts.c.conversation_id
        tx.conn.execute(sa.update(contexts).where(column == conversation_id).values(epoch=epoch))


def _required(scope: Scope | None, field: str) -> Scope:
    if scope is None:
        raise InvalidArgument(f"{field} is required where the request names no scope.", field=field)
    return scope
