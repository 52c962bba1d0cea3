"""The turns that an import names: those of the agent, their traces, and the ids that they had in the file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import sqlalchemy as sa

from mnemesh_recall.model.trace_imports import OWN_ID, AgentTurns
from mnemesh_recall.model.traces import Trace
from mnemesh_recall.store.sql import trace_rows
from mnemesh_recall.store.sql.tables import agents, messages, trace_lines, turns

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
