"""The import of records from trace files or from the export of another agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, Role

from mnemesh_recall.errors import position_taken, record_exists
from mnemesh_recall.model.context_rules import last_message_time
from mnemesh_recall.model.episodes import Episode, Fact
from mnemesh_recall.model.messages import default_conversation_id
from mnemesh_recall.model.trace_imports import is_same_trace, messages_from_traces, turn_ids_of_import
from mnemesh_recall.model.trace_operations import ImportResult, TraceImport
from mnemesh_recall.model.traces import ImportedLine, Snapshot, Trace
from mnemesh_recall.store.sql import agents, import_turns, message_rows, windows
from mnemesh_recall.store.sql.import_memories import MemoryImport
from mnemesh_recall.store.sql.tables import contexts, trace_lines
from mnemesh_recall.store.sql.trace_codec import line_to_row
from mnemesh_recall.store.sql.transaction import Transaction

_c = contexts.c


def import_records(tx: Transaction, request: TraceImport) -> ImportResult:
    """See TraceStore.import_records."""
    agents.take_sequence_ids(tx, request.agent_id, 0)
    if request.conversation_id is None:
        request = replace(request, conversation_id=default_conversation_id(request.agent_id))
    else:
        windows.read_state(tx.conn, tx.organization_id, request.conversation_id, request.agent_id)
    traces = [record for record in request.records if isinstance(record, Trace)]
    given_episodes = [record for record in request.records if isinstance(record, Episode)]
    given_facts = [record for record in request.records if isinstance(record, Fact)]
    named = {trace.turn_id for trace in traces} | {id_ for episode in given_episodes for id_ in episode.turn_ids}
    known_turns = import_turns.read_turns(tx.conn, request.agent_id, named)
    existing = import_turns.read_traces(tx.conn, request.agent_id, traces, known_turns)
    turn_ids = dict(known_turns.imported) | turn_ids_of_import(traces, existing, known_turns)
    if request.extend_window:
        _store_summaries(tx, request)
    new = _new_traces(tx, request, traces, existing, turn_ids)
    new_turns = {trace.turn_id for trace in new} - {trace.turn_id for trace in existing.values()} - known_turns.ids
    _store(tx, request, new)
    import_turns.write_imported_ids(tx.conn, request.agent_id, {turn_ids[id_]: id_ for id_ in turn_ids}, new_turns)
    memories = MemoryImport(tx, request.agent_id, turn_ids, exact=request.exact)
    new_episodes = sum(map(memories.store_episode, given_episodes))
    new_facts = memories.store_facts(given_facts)
    stored = len(new) + new_episodes + new_facts
    return ImportResult(
        traces=len(new),
        episodes=new_episodes,
        facts=new_facts,
        skipped=len(request.records) - stored,
        turns=len(new_turns),
    )


def _new_traces(
    tx: Transaction,
    request: TraceImport,
    given: Sequence[Trace],
    existing: Mapping[str, Trace],
    turn_ids: Mapping[str, str],
) -> list[Trace]:
    """Returns the traces that do not exist, each with one of the agent's turns and conversations.

    Raises:
        AlreadyExists: a trace exists with other content, or two traces of the import have one id or one position.
    """
    own = _conversations(tx, request.agent_id)
    new: dict[str, Trace] = {}
    positions: dict[tuple[str, int], str] = {}
    for trace in given:
        known = existing.get(trace.id) or new.get(trace.id)
        if known is not None:
            if not is_same_trace(known, trace):
                raise record_exists(trace.id)
            continue
        if positions.setdefault((trace.turn_id, trace.seq), trace.id) != trace.id:
            raise position_taken(trace.id, trace.turn_id, trace.seq)
        conversation_id = trace.conversation_id if trace.conversation_id in own else request.conversation_id
        turn_id = turn_ids[trace.turn_id]
        imported = trace.turn_id if turn_id != trace.turn_id else None
        new[trace.id] = replace(trace, conversation_id=conversation_id, turn_id=turn_id, imported_turn_id=imported)
    return list(new.values())


def _store_summaries(tx: Transaction, request: TraceImport) -> None:
    """Puts the summaries of snapshots at the head of windows that have no message but the system message."""
    own = _conversations(tx, request.agent_id)
    for snapshot in request.records:
        if not isinstance(snapshot, Snapshot) or not snapshot.messages:
            continue
        conversation_id = snapshot.conversation_id if snapshot.conversation_id in own else request.conversation_id or ""
        if len(windows.read_ids(tx.conn, conversation_id)) != 1:
            continue
        given = snapshot.messages[-1]
        summary = Message(
            id=derive_id("message", request.agent_id, given.id),
            agent_id=request.agent_id,
            role=Role.SUMMARY,
            created_at=given.created_at,
            content=given.content,
            conversation_id=conversation_id,
        )
        message_rows.store(tx, request.agent_id, [summary])
        _append(tx, request.agent_id, conversation_id, [summary])


def _conversations(tx: Transaction, agent_id: str) -> set[str]:
    return set(tx.conn.execute(sa.select(_c.conversation_id).where(_c.agent_id == agent_id)).scalars())


def _store(tx: Transaction, request: TraceImport, new: Sequence[Trace]) -> None:
    appended: dict[str, list[Message]] = {}
    for chunk in import_turns.chunks(list(messages_from_traces(request.agent_id, new))):
        message_rows.store(tx, request.agent_id, [message for message, _, _ in chunk])
        lines: list[ImportedLine] = [line for _, lines, _ in chunk for line in lines]
        tx.conn.execute(sa.insert(trace_lines), [line_to_row(line, request.agent_id) for line in lines])
        for message, _, traces in chunk:
            if request.extend_window and not traces[0].archived:
                appended.setdefault(message.conversation_id or "", []).append(message)
    for conversation_id, batch in appended.items():
        _append(tx, request.agent_id, conversation_id, batch)


def _append(tx: Transaction, agent_id: str, conversation_id: str, batch: Sequence[Message]) -> None:
    state = windows.read_state(tx.conn, tx.organization_id, conversation_id, agent_id)
    ids = message_rows.ids_of(batch)
    windows.insert_entries(tx.conn, conversation_id, state.next_position, ids)
    windows.update_state(
        tx.conn,
        state,
        tx.now,
        next_position=state.next_position + len(ids),
        last_message_at=last_message_time(batch, state.last_message_at),
    )
