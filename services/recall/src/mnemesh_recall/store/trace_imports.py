"""The import of records from trace files or from the export of another agent."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_types.messages import Message, Role

from mnemesh_recall.errors import position_taken, record_exists
from mnemesh_recall.model.contexts import last_message_time
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.model.messages import default_conversation_id
from mnemesh_recall.model.trace_requests import ImportResult, TraceImport
from mnemesh_recall.model.traces import (
    OWN_ID,
    AgentTurns,
    ImportedLine,
    Snapshot,
    Trace,
    is_same_trace,
    messages_from_traces,
    turn_ids_of_import,
)
from mnemesh_recall.store import episode_rows, message_rows, trace_rows, windows
from mnemesh_recall.store import transaction as agent_rows
from mnemesh_recall.store.episode_rows import episode_from_row, fact_from_row
from mnemesh_recall.store.tables import agents, contexts, episodes, facts, messages, trace_lines, turns
from mnemesh_recall.store.trace_rows import line_to_row
from mnemesh_recall.store.transaction import Transaction


class MemoryImport:
    """Stores the memories of one import. A record is known by its id in the file, within its scope."""

    def __init__(self, tx: Transaction, agent_id: str, turn_ids: Mapping[str, str], *, exact: bool = False) -> None:
        """Takes the agent, its turn for each turn id of the file, and TraceImport.exact."""
        self._tx = tx
        self._exact = exact
        self._agent_id = agent_id
        self._own = Scope(ScopeKind.AGENT, agent_id)
        self._turn_ids = turn_ids
        self._episodes: dict[Scope, dict[str, Episode]] = {}
        self._facts: dict[Scope, dict[str, Fact]] = {}

    def store_episode(self, record: Episode) -> bool:
        """Stores an episode, unless it exists. Returns whether it is new.

        Raises:
            AlreadyExists: it exists with other content.
        """
        scope = self._scope_of(record)
        existing = self._known_episodes(scope)
        turn_ids = record.turn_ids
        if scope == self._own or record.source.agent_id == self._agent_id:
            turn_ids = tuple(self._turn_ids.get(id_, id_) for id_ in turn_ids)
        known = existing.get(record.id)
        if known is not None:
            is_same = (known.summary, known.created_at) == (record.summary, record.created_at)
            if not is_same or known.turn_ids not in (turn_ids, record.turn_ids):
                raise record_exists(record.id)
            return False
        id_ = self._id("episode", scope, record.id)
        episode = replace(record, id=id_, scope=scope, turn_ids=turn_ids, imported_id=_if_other(record.id, id_))
        episode_rows.insert(self._tx, episode, self._owner(scope))
        existing[record.id] = episode
        return True

    def store_facts(self, given: Sequence[Fact]) -> int:
        """Stores the facts that do not exist, with their links. Returns their number.

        Raises:
            AlreadyExists: one exists with other content.
        """
        given_ids = {(self._scope_of(record), record.id) for record in given}
        return sum(self._store_fact(record, given_ids) for record in given)

    def _store_fact(self, record: Fact, given_ids: set[tuple[Scope, str]]) -> bool:
        scope = self._scope_of(record)
        existing = self._known_facts(scope)
        known = existing.get(record.id)
        if known is not None:
            if (known.text, known.created_at, known.valid_from) != (record.text, record.created_at, record.valid_from):
                raise record_exists(record.id)
            return False

        def stored_id(id_: str | None) -> str | None:
            if id_ is None:
                return None
            if id_ in existing:
                return existing[id_].id
            return self._id("fact", scope, id_) if self._exact or (scope, id_) in given_ids else None

        before = None if record.supersedes_id is None else existing.get(record.supersedes_id)
        source = record.source
        if source.episode_id is not None:
            episode = self._known_episodes(scope).get(source.episode_id)
            source = replace(source, episode_id=None if episode is None else episode.id)
        fact_id = self._id("fact", scope, record.id)
        fact = replace(
            record,
            id=fact_id,
            scope=scope,
            source=source,
            imported_id=_if_other(record.id, fact_id),
            supersedes_id=stored_id(record.supersedes_id),
            superseded_by_id=stored_id(record.superseded_by_id),
            chain_id=fact_id if before is None else before.chain_id,
        )
        episode_rows.insert(self._tx, fact, self._owner(scope))
        existing[record.id] = fact
        return True

    def _scope_of(self, record: Episode | Fact) -> Scope:
        return record.scope if record.scope.id else self._own

    def _owner(self, scope: Scope) -> str | None:
        return self._agent_id if self._is_of_agent(scope) else None

    def _is_of_agent(self, scope: Scope) -> bool:
        return scope == self._own or scope.kind is ScopeKind.CONVERSATION

    def _id(self, prefix: str, scope: Scope, record_id: str) -> str:
        if self._exact and is_id(record_id, prefix) and self._is_free(prefix, record_id):
            return record_id
        if self._is_of_agent(scope):
            return derive_id(prefix, self._agent_id, record_id)
        return derive_id(prefix, self._tx.organization_id, scope.key, record_id)

    def _is_free(self, prefix: str, record_id: str) -> bool:
        table = episodes if prefix == "episode" else facts
        return self._tx.conn.scalar(sa.select(table.c.id).where(table.c.id == record_id)) is None

    def _known_episodes(self, scope: Scope) -> dict[str, Episode]:
        scope = self._own if self._is_of_agent(scope) else scope
        if scope not in self._episodes:
            rows = self._rows(episodes, scope)
            self._episodes[scope] = {key: episode_from_row(row) for row, keys in rows for key in keys}
        return self._episodes[scope]

    def _known_facts(self, scope: Scope) -> dict[str, Fact]:
        scope = self._own if self._is_of_agent(scope) else scope
        if scope not in self._facts:
            rows = self._rows(facts, scope)
            self._facts[scope] = {key: fact_from_row(row) for row, keys in rows for key in keys}
        return self._facts[scope]

    def _rows(self, table: sa.Table, scope: Scope) -> Iterator[tuple[Any, tuple[str, ...]]]:
        """Yields the rows of a scope, each with the ids that a file may use for it.

        The scope of the agent has the memories of its conversations, too.
        """
        column = table.c
        is_named = sa.and_(column.scope_kind == scope.kind.value, column.scope_id == scope.id)
        of_scope = column.owner_agent_id == self._agent_id if scope == self._own else is_named
        rows = self._tx.conn.execute(
            sa.select(table).where(of_scope, column.organization_id == self._tx.organization_id)
        )
        for row in rows:
            yield row, (row.id,) if row.imported_id is None else (row.imported_id, row.id)


def _if_other(imported_id: str, own_id: str) -> str | None:
    """Returns the id in the file, if the memory got another one."""
    return imported_id if imported_id != own_id else None


T = TypeVar("T")

BATCH: Final = 500
_l, _m, _t = trace_lines.c, messages.c, turns.c


def read_turns(conn: sa.Connection, agent_id: str, named: Collection[str]) -> AgentTurns:
    """Returns the agent's turns that have one of the ids, or had it in the file that they were imported from."""
    ids: set[str] = set()
    imported: dict[str, str] = {}
    for chunk in chunks(sorted(named)):
        is_named = sa.or_(_t.turn_id.in_(chunk), _t.imported_id.in_(chunk))
        rows = conn.execute(
            sa.select(_t.turn_id, _t.imported_id).where(_t.agent_id == agent_id, is_named).order_by(_t.turn_index)
        )
        for row in rows:
            ids.add(row.turn_id)
            if row.imported_id is not None:
                imported[row.imported_id] = row.turn_id
    last = conn.execute(sa.select(agents.c.last_turn_index).where(agents.c.agent_id == agent_id)).scalar_one()
    return AgentTurns(frozenset(ids), imported, int(last))


def read_traces(
    conn: sa.Connection, agent_id: str, given: Sequence[Trace], agent_turns: AgentTurns
) -> dict[str, Trace]:
    """Returns the agent's traces, by id, in the given turns and in the turns that contain one of the given traces."""
    turn_ids = set(agent_turns.ids)
    for ids in chunks([trace.id for trace in given]):
        lines = sa.select(_l.message_id).where(_l.agent_id == agent_id, _l.trace_id.in_(ids))
        own = [match[1] for id_ in ids if (match := OWN_ID.fullmatch(id_)) is not None]
        turns_of = sa.select(_m.turn_id).where(_m.agent_id == agent_id, _m.turn_id.is_not(None))
        for found in (turns_of.where(_m.id.in_(lines)), turns_of.where(_m.id.in_(own))):
            turn_ids |= set(conn.execute(found).scalars())
    existing: dict[str, Trace] = {}
    for chunk in chunks(sorted(turn_ids)):
        for traces in trace_rows.traces(conn, agent_id, chunk).values():
            existing |= {trace.id: trace for trace in traces}
    return existing


def write_imported_ids(
    conn: sa.Connection, agent_id: str, imported_ids: Mapping[str, str], new_turns: Collection[str]
) -> None:
    """Stores the ids that new turns had in the file, if they differ."""
    rows = [
        {"agent": agent_id, "turn": turn_id, "imported": imported_ids[turn_id]}
        for turn_id in sorted(new_turns)
        if imported_ids[turn_id] != turn_id
    ]
    if rows:
        where = (_t.agent_id == sa.bindparam("agent"), _t.turn_id == sa.bindparam("turn"))
        conn.execute(sa.update(turns).where(*where).values(imported_id=sa.bindparam("imported")), rows)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yields the items in batches that fit into one statement."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


_c = contexts.c


def import_records(tx: Transaction, request: TraceImport) -> ImportResult:
    """See TraceStore.import_records."""
    agent_rows.take_sequence_ids(tx, request.agent_id, 0)
    if request.conversation_id is None:
        request = replace(request, conversation_id=default_conversation_id(request.agent_id))
    else:
        windows.read_state(tx.conn, tx.organization_id, request.conversation_id, request.agent_id)
    traces = [record for record in request.records if isinstance(record, Trace)]
    given_episodes = [record for record in request.records if isinstance(record, Episode)]
    given_facts = [record for record in request.records if isinstance(record, Fact)]
    named = {trace.turn_id for trace in traces} | {id_ for episode in given_episodes for id_ in episode.turn_ids}
    known_turns = read_turns(tx.conn, request.agent_id, named)
    existing = read_traces(tx.conn, request.agent_id, traces, known_turns)
    turn_ids = dict(known_turns.imported) | turn_ids_of_import(traces, existing, known_turns)
    if request.extend_window:
        _store_summaries(tx, request)
    new = _new_traces(tx, request, traces, existing, turn_ids)
    new_turns = {trace.turn_id for trace in new} - {trace.turn_id for trace in existing.values()} - known_turns.ids
    _store(tx, request, new)
    write_imported_ids(tx.conn, request.agent_id, {turn_ids[id_]: id_ for id_ in turn_ids}, new_turns)
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
    for chunk in chunks(list(messages_from_traces(request.agent_id, new))):
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
