"""Records of trace files, or of another agent's export, become an agent's messages, episodes and facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.ids import derive_id

from mnemesh_recall.errors import record_exists
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.model.messages import Message, default_conversation_id
from mnemesh_recall.model.trace_imports import OWN_ID, messages_of, same
from mnemesh_recall.model.trace_operations import Import, Imported
from mnemesh_recall.model.traces import Line, Trace
from mnemesh_recall.store.sql import agents, episode_rows, message_rows, trace_rows, windows
from mnemesh_recall.store.sql.episode_codec import to_episode, to_fact
from mnemesh_recall.store.sql.episode_tables import episodes, facts
from mnemesh_recall.store.sql.tables import contexts, messages, trace_lines, turns
from mnemesh_recall.store.sql.trace_codec import line_row
from mnemesh_recall.store.sql.transaction import Transaction

T = TypeVar("T")

AT_ONCE: Final = 500
_l, _m, _t, _c = trace_lines.c, messages.c, turns.c, contexts.c


def bring_in(tx: Transaction, wanted: Import) -> Imported:
    """See TraceStore.import_records."""
    agents.take_numbers(tx, wanted.agent_id, 0)
    if wanted.conversation_id is None:
        wanted = replace(wanted, conversation_id=default_conversation_id(wanted.agent_id))
    else:
        windows.head(tx.conn, tx.organization_id, wanted.conversation_id, wanted.agent_id)
    given = [record for record in wanted.records if isinstance(record, Trace)]
    fresh = _fresh(tx, wanted, given)
    new_turns = {trace.turn_id for trace in fresh} - _turns_there(tx, wanted.agent_id, fresh)
    _store(tx, wanted, fresh)
    told_episodes = [record for record in wanted.records if isinstance(record, Episode)]
    told_facts = [record for record in wanted.records if isinstance(record, Fact)]
    new_episodes = _keep_episodes(tx, wanted.agent_id, told_episodes)
    new_facts = _keep_facts(tx, wanted.agent_id, told_facts)
    kept = len(fresh) + new_episodes + new_facts
    return Imported(
        traces=len(fresh),
        episodes=new_episodes,
        facts=new_facts,
        skipped=len(wanted.records) - kept,
        turns=len(new_turns),
    )


def _fresh(tx: Transaction, wanted: Import, given: Sequence[Trace]) -> list[Trace]:
    """The traces that are not there, each of one of the agent's conversations. AlreadyExists: one is, and differs."""
    own = set(tx.conn.execute(sa.select(_c.conversation_id).where(_c.agent_id == wanted.agent_id)).scalars())
    there = _there(tx, wanted.agent_id, given)
    places = {(trace.turn_id, trace.seq) for trace in there.values()}
    fresh = []
    for trace in given:
        known = there.get(trace.id)
        if known is not None:
            if not same(known, trace):
                raise record_exists(trace.id)
            continue
        if (trace.turn_id, trace.seq) in places:
            # Another history has that place of that turn.
            raise record_exists(trace.id)
        placed = trace if trace.conversation_id in own else replace(trace, conversation_id=wanted.conversation_id)
        there[trace.id] = placed
        places.add((trace.turn_id, trace.seq))
        fresh.append(placed)
    return fresh


def _there(tx: Transaction, agent_id: str, given: Sequence[Trace]) -> dict[str, Trace]:
    """The agent's traces in the turns that are named, and in those that hold one of the ids."""
    named = _turns_there(tx, agent_id, given)
    for ids in _chunks([trace.id for trace in given]):
        lines = sa.select(_l.message_id).where(_l.agent_id == agent_id, _l.trace_id.in_(ids))
        own = [match[1] for id_ in ids if (match := OWN_ID.fullmatch(id_)) is not None]
        holding = sa.select(_m.turn_id).where(_m.agent_id == agent_id, _m.turn_id.is_not(None))
        for found in (holding.where(_m.id.in_(lines)), holding.where(_m.id.in_(own))):
            named |= set(tx.conn.execute(found).scalars())
    there: dict[str, Trace] = {}
    for turn_ids in _chunks(sorted(named)):
        for found_traces in trace_rows.traces(tx.conn, agent_id, turn_ids).values():
            there |= {trace.id: trace for trace in found_traces}
    return there


def _turns_there(tx: Transaction, agent_id: str, given: Sequence[Trace]) -> set[str]:
    found: set[str] = set()
    for ids in _chunks(sorted({trace.turn_id for trace in given})):
        known = sa.select(_t.turn_id).where(_t.agent_id == agent_id, _t.turn_id.in_(ids))
        found |= set(tx.conn.execute(known).scalars())
    return found


def _store(tx: Transaction, wanted: Import, fresh: Sequence[Trace]) -> None:
    entering: dict[str, list[Message]] = {}
    for made in _chunks(list(messages_of(wanted.agent_id, fresh))):
        message_rows.store(tx, wanted.agent_id, [message for message, _, _ in made])
        lines: list[Line] = [line for _, lines, _ in made for line in lines]
        tx.conn.execute(sa.insert(trace_lines), [line_row(line, wanted.agent_id) for line in lines])
        for message, _, part in made:
            if wanted.extend_window and not part[0].archived:
                entering.setdefault(message.conversation_id or "", []).append(message)
    for conversation_id, entered in entering.items():
        state = windows.head(tx.conn, tx.organization_id, conversation_id, wanted.agent_id)
        ids = message_rows.ids_of(entered)
        windows.enter(tx.conn, conversation_id, state.next_position, ids)
        latest = max(message.created_at for message in entered)
        windows.move(
            tx.conn,
            state,
            tx.now,
            next_position=state.next_position + len(ids),
            last_message_at=max(latest, state.last_message_at or latest),
        )


def _keep_episodes(tx: Transaction, agent_id: str, given: Sequence[Episode]) -> int:
    there = {key: to_episode(row) for row, keys in _known(tx, episodes, agent_id) for key in keys}
    kept = 0
    for record in given:
        known = there.get(record.id)
        if known is not None:
            if (known.summary, known.turn_ids, known.created_at) != (
                record.summary,
                record.turn_ids,
                record.created_at,
            ):
                raise record_exists(record.id)
            continue
        id_ = derive_id("episode", agent_id, record.id)
        episode = replace(record, id=id_, scope=Scope(ScopeKind.AGENT, agent_id), imported_id=record.id)
        episode_rows.insert(tx, episode, agent_id)
        there[record.id] = episode
        kept += 1
    return kept


def _keep_facts(tx: Transaction, agent_id: str, given: Sequence[Fact]) -> int:
    there = {key: to_fact(row) for row, keys in _known(tx, facts, agent_id) for key in keys}
    drawn_from = {key: row.id for row, keys in _known(tx, episodes, agent_id) for key in keys}
    kept = 0
    named = {record.id for record in given}

    def own(id_: str | None) -> str | None:
        if id_ is None:
            return None
        if id_ in there:
            return there[id_].id
        return derive_id("fact", agent_id, id_) if id_ in named else None

    for record in given:
        known = there.get(record.id)
        if known is not None:
            if (known.text, known.created_at, known.valid_from) != (record.text, record.created_at, record.valid_from):
                raise record_exists(record.id)
            continue
        id_ = derive_id("fact", agent_id, record.id)
        before = None if record.supersedes_id is None else there.get(record.supersedes_id)
        source = record.source
        if source.episode_id is not None:
            source = replace(source, episode_id=drawn_from.get(source.episode_id))
        fact = replace(
            record,
            id=id_,
            scope=Scope(ScopeKind.AGENT, agent_id),
            source=source,
            imported_id=record.id,
            supersedes_id=own(record.supersedes_id),
            superseded_by_id=own(record.superseded_by_id),
            chain_id=id_ if before is None else before.chain_id,
        )
        episode_rows.insert(tx, fact, agent_id)
        there[record.id] = fact
        kept += 1
    return kept


def _known(tx: Transaction, table: sa.Table, agent_id: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """The rows of an agent, each with the ids by which a trace file may call it."""
    column = table.c
    rows = tx.conn.execute(
        sa.select(table).where(column.owner_agent_id == agent_id, column.organization_id == tx.organization_id)
    )
    for row in rows:
        yield row, (row.id,) if row.imported_id is None else (row.imported_id, row.id)


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE))
