"""What goes out of an agent, as of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import sqlalchemy as sa

from mnemesh_recall.errors import no_agent, no_conversation
from mnemesh_recall.model.episodes import Episode, Fact, Scope, ScopeKind
from mnemesh_recall.model.trace_operations import Export, RecordType
from mnemesh_recall.model.traces import Snapshot
from mnemesh_recall.store.sql import windows
from mnemesh_recall.store.sql.episode_codec import to_episode, to_fact
from mnemesh_recall.store.sql.episode_tables import episodes, facts
from mnemesh_recall.store.sql.tables import agents, contexts, turns
from mnemesh_recall.store.sql.trace_rows import shown

M = TypeVar("M", Episode, Fact)

_t, _c = turns.c, contexts.c


@dataclass(frozen=True, slots=True)
class Plan:
    """What there was at that moment: turns in order, with whether they were archived, and all but their traces."""

    last_sequence_id: int
    turns: tuple[tuple[str, bool], ...]
    episodes: tuple[Episode, ...]
    facts: tuple[Fact, ...]
    snapshots: tuple[Snapshot, ...]


def plan(conn: sa.Connection, organization_id: str, wanted: Export) -> Plan:
    """Reads everything but the traces, and what bounds them. NotFound: the agent, or the conversation of it."""
    last = conn.scalar(
        sa.select(agents.c.last_sequence_id).where(
            agents.c.agent_id == wanted.agent_id, agents.c.organization_id == organization_id
        )
    )
    if last is None:
        raise no_agent(wanted.agent_id)
    if wanted.conversation_id is not None:
        _require_conversation(conn, wanted.agent_id, wanted.conversation_id)
    memories = list(_memories(conn, organization_id, wanted))
    named = {memory.id: memory.imported_id for memory in memories if memory.imported_id is not None}
    return Plan(
        last_sequence_id=int(last),
        turns=tuple(_turns(conn, organization_id, wanted)) if wanted.wants(RecordType.TRACE) else (),
        episodes=tuple(_named(memory, named) for memory in memories if isinstance(memory, Episode)),
        facts=tuple(_named(memory, named) for memory in memories if isinstance(memory, Fact)),
        snapshots=tuple(_snapshots(conn, organization_id, wanted)) if wanted.wants(RecordType.SNAPSHOT) else (),
    )


def _require_conversation(conn: sa.Connection, agent_id: str, conversation_id: str) -> None:
    """A conversation that has a window, or had one in which something was said."""
    for table in (contexts, turns):
        of_agent = sa.and_(table.c.agent_id == agent_id, table.c.conversation_id == conversation_id)
        if conn.scalar(sa.select(table.c.agent_id).where(of_agent).limit(1)) is not None:
            return
    raise no_conversation(conversation_id)


def _turns(conn: sa.Connection, organization_id: str, wanted: Export) -> Iterator[tuple[str, bool]]:
    chosen = sa.select(_t.turn_id, shown().label("is_shown")).where(
        _t.agent_id == wanted.agent_id, _t.organization_id == organization_id
    )
    if wanted.conversation_id is not None:
        chosen = chosen.where(_t.conversation_id == wanted.conversation_id)
    for row in conn.execute(chosen.order_by(_t.turn_index)):
        if wanted.archived is None or wanted.archived is not bool(row.is_shown):
            yield row.turn_id, not row.is_shown


def _memories(conn: sa.Connection, organization_id: str, wanted: Export) -> Iterator[Episode | Fact]:
    for kind, table in ((RecordType.EPISODE, episodes), (RecordType.FACT, facts)):
        if not wanted.wants(kind):
            continue
        column = table.c
        rows = conn.execute(
            sa.select(table)
            .where(column.organization_id == organization_id, column.owner_agent_id == wanted.agent_id)
            .order_by(column.created_at, column.row_id)
        )
        for row in rows:
            memory = to_episode(row) if table is episodes else to_fact(row)
            if in_time(memory.created_at, wanted) and _in_conversation(memory, wanted.conversation_id):
                yield memory


def _in_conversation(memory: Episode | Fact, conversation_id: str | None) -> bool:
    return (
        conversation_id is None
        or memory.source.conversation_id == conversation_id
        or memory.scope == Scope(ScopeKind.CONVERSATION, conversation_id)
    )


def _named(memory: M, named: dict[str, str]) -> M:
    """The memory under the ids of the trace files that it came from."""
    own = named.get(memory.id, memory.id)
    source = memory.source
    if source.episode_id in named:
        source = replace(source, episode_id=named[source.episode_id])
    if isinstance(memory, Episode):
        return replace(memory, id=own, source=source)
    links = {
        link: named.get(id_, id_)
        for link in ("superseded_by_id", "supersedes_id")
        if (id_ := getattr(memory, link)) is not None
    }
    return replace(memory, id=own, source=source, **links)


def _snapshots(conn: sa.Connection, organization_id: str, wanted: Export) -> Iterator[Snapshot]:
    chosen = sa.select(_c.conversation_id, _c.resets, _c.reset_at).where(
        _c.agent_id == wanted.agent_id, _c.organization_id == organization_id
    )
    if wanted.conversation_id is not None:
        chosen = chosen.where(_c.conversation_id == wanted.conversation_id)
    for row in conn.execute(chosen.order_by(_c.created_at, _c.conversation_id)).all():
        window = windows.shown(conn, row.conversation_id)
        yield Snapshot(row.conversation_id, row.resets + 1, row.reset_at, window)


def in_time(moment: datetime, wanted: Export) -> bool:
    """Whether a record of that time is asked for."""
    return (wanted.from_time is None or moment >= wanted.from_time) and (
        wanted.before_time is None or moment < wanted.before_time
    )
