"""The import of records from trace files or from the export of another agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message

from mnemesh_recall.errors import record_exists
from mnemesh_recall.model.context_rules import last_message_time
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.model.messages import default_conversation_id
from mnemesh_recall.model.trace_imports import OWN_ID, is_same_trace, messages_from_traces
from mnemesh_recall.model.trace_operations import ImportResult, TraceImport
from mnemesh_recall.model.traces import ImportedLine, Trace
from mnemesh_recall.store.sql import agents, episode_rows, message_rows, trace_rows, windows
from mnemesh_recall.store.sql.episode_codec import episode_from_row, fact_from_row
from mnemesh_recall.store.sql.episode_tables import episodes, facts
from mnemesh_recall.store.sql.tables import contexts, messages, trace_lines, turns
from mnemesh_recall.store.sql.trace_codec import line_to_row
from mnemesh_recall.store.sql.transaction import Transaction

T = TypeVar("T")

BATCH: Final = 500
_l, _m, _t, _c = trace_lines.c, messages.c, turns.c, contexts.c


def import_records(tx: Transaction, request: TraceImport) -> ImportResult:
    """See TraceStore.import_records."""
    agents.take_sequence_ids(tx, request.agent_id, 0)
    if request.conversation_id is None:
        request = replace(request, conversation_id=default_conversation_id(request.agent_id))
    else:
        windows.read_state(tx.conn, tx.organization_id, request.conversation_id, request.agent_id)
    traces = [record for record in request.records if isinstance(record, Trace)]
    new = _new_traces(tx, request, traces)
    new_turns = {trace.turn_id for trace in new} - _existing_turns(tx, request.agent_id, new)
    _store(tx, request, new)
    given_episodes = [record for record in request.records if isinstance(record, Episode)]
    given_facts = [record for record in request.records if isinstance(record, Fact)]
    new_episodes = _store_episodes(tx, request.agent_id, given_episodes)
    new_facts = _store_facts(tx, request.agent_id, given_facts)
    stored = len(new) + new_episodes + new_facts
    return ImportResult(
        traces=len(new),
        episodes=new_episodes,
        facts=new_facts,
        skipped=len(request.records) - stored,
        turns=len(new_turns),
    )


def _new_traces(tx: Transaction, request: TraceImport, given: Sequence[Trace]) -> list[Trace]:
    """Returns the traces that do not exist, each with one of the agent's conversations.

    Raises:
        AlreadyExists: a trace exists with other content.
    """
    own = set(tx.conn.execute(sa.select(_c.conversation_id).where(_c.agent_id == request.agent_id)).scalars())
    existing = _existing_traces(tx, request.agent_id, given)
    positions = {(trace.turn_id, trace.seq) for trace in existing.values()}
    new = []
    for trace in given:
        known = existing.get(trace.id)
        if known is not None:
            if not is_same_trace(known, trace):
                raise record_exists(trace.id)
            continue
        if (trace.turn_id, trace.seq) in positions:
            # Another trace has this position of the turn.
            raise record_exists(trace.id)
        placed = trace if trace.conversation_id in own else replace(trace, conversation_id=request.conversation_id)
        existing[trace.id] = placed
        positions.add((trace.turn_id, trace.seq))
        new.append(placed)
    return new


def _existing_traces(tx: Transaction, agent_id: str, given: Sequence[Trace]) -> dict[str, Trace]:
    """Returns the agent's traces in the turns of the given traces, and in the turns that contain one of their ids."""
    turn_ids = _existing_turns(tx, agent_id, given)
    for ids in _chunks([trace.id for trace in given]):
        lines = sa.select(_l.message_id).where(_l.agent_id == agent_id, _l.trace_id.in_(ids))
        own = [match[1] for id_ in ids if (match := OWN_ID.fullmatch(id_)) is not None]
        turns_of = sa.select(_m.turn_id).where(_m.agent_id == agent_id, _m.turn_id.is_not(None))
        for found in (turns_of.where(_m.id.in_(lines)), turns_of.where(_m.id.in_(own))):
            turn_ids |= set(tx.conn.execute(found).scalars())
    existing: dict[str, Trace] = {}
    for chunk in _chunks(sorted(turn_ids)):
        for traces in trace_rows.traces(tx.conn, agent_id, chunk).values():
            existing |= {trace.id: trace for trace in traces}
    return existing


def _existing_turns(tx: Transaction, agent_id: str, given: Sequence[Trace]) -> set[str]:
    found: set[str] = set()
    for ids in _chunks(sorted({trace.turn_id for trace in given})):
        known = sa.select(_t.turn_id).where(_t.agent_id == agent_id, _t.turn_id.in_(ids))
        found |= set(tx.conn.execute(known).scalars())
    return found


def _store(tx: Transaction, request: TraceImport, new: Sequence[Trace]) -> None:
    appended: dict[str, list[Message]] = {}
    for chunk in _chunks(list(messages_from_traces(request.agent_id, new))):
        message_rows.store(tx, request.agent_id, [message for message, _, _ in chunk])
        lines: list[ImportedLine] = [line for _, lines, _ in chunk for line in lines]
        tx.conn.execute(sa.insert(trace_lines), [line_to_row(line, request.agent_id) for line in lines])
        for message, _, traces in chunk:
            if request.extend_window and not traces[0].archived:
                appended.setdefault(message.conversation_id or "", []).append(message)
    for conversation_id, batch in appended.items():
        state = windows.read_state(tx.conn, tx.organization_id, conversation_id, request.agent_id)
        ids = message_rows.ids_of(batch)
        windows.insert_entries(tx.conn, conversation_id, state.next_position, ids)
        windows.update_state(
            tx.conn,
            state,
            tx.now,
            next_position=state.next_position + len(ids),
            last_message_at=last_message_time(batch, state.last_message_at),
        )


def _store_episodes(tx: Transaction, agent_id: str, given: Sequence[Episode]) -> int:
    existing = {key: episode_from_row(row) for row, keys in _existing_memories(tx, episodes, agent_id) for key in keys}
    stored = 0
    for record in given:
        known = existing.get(record.id)
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
        existing[record.id] = episode
        stored += 1
    return stored


def _store_facts(tx: Transaction, agent_id: str, given: Sequence[Fact]) -> int:
    existing = {key: fact_from_row(row) for row, keys in _existing_memories(tx, facts, agent_id) for key in keys}
    episode_ids = {key: row.id for row, keys in _existing_memories(tx, episodes, agent_id) for key in keys}
    stored = 0
    given_ids = {record.id for record in given}

    def stored_id(id_: str | None) -> str | None:
        if id_ is None:
            return None
        if id_ in existing:
            return existing[id_].id
        return derive_id("fact", agent_id, id_) if id_ in given_ids else None

    for record in given:
        known = existing.get(record.id)
        if known is not None:
            if (known.text, known.created_at, known.valid_from) != (record.text, record.created_at, record.valid_from):
                raise record_exists(record.id)
            continue
        id_ = derive_id("fact", agent_id, record.id)
        before = None if record.supersedes_id is None else existing.get(record.supersedes_id)
        source = record.source
        if source.episode_id is not None:
            source = replace(source, episode_id=episode_ids.get(source.episode_id))
        fact = replace(
            record,
            id=id_,
            scope=Scope(ScopeKind.AGENT, agent_id),
            source=source,
            imported_id=record.id,
            supersedes_id=stored_id(record.supersedes_id),
            superseded_by_id=stored_id(record.superseded_by_id),
            chain_id=id_ if before is None else before.chain_id,
        )
        episode_rows.insert(tx, fact, agent_id)
        existing[record.id] = fact
        stored += 1
    return stored


def _existing_memories(tx: Transaction, table: sa.Table, agent_id: str) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yields the rows of an agent, each with the ids that a trace file may use for it."""
    column = table.c
    rows = tx.conn.execute(
        sa.select(table).where(column.owner_agent_id == agent_id, column.organization_id == tx.organization_id)
    )
    for row in rows:
        yield row, (row.id,) if row.imported_id is None else (row.imported_id, row.id)


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))
