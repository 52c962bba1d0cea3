"""Imports of agents, and the parts of imported agents."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from mnemesh_kit.audit import note_change
from mnemesh_kit.errors import Aborted, AlreadyExists, RequestIdReused
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.agents import Agent, AgentState
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.model.creation import Deletion
from mnemesh_orchestrator.model.runs import Run, Step
from mnemesh_orchestrator.model.transfers import AgentImport, ImportReport
from mnemesh_orchestrator.store import turn_statements as sql
from mnemesh_orchestrator.store.agent_rows import (
    agent_columns,
    conversation_columns,
    insert_agent,
    new_conversation_row,
    write_links,
    write_tags,
)
from mnemesh_orchestrator.store.run_rows import ended_values, insert_run, record_steps
from mnemesh_orchestrator.store.tables import agent_imports, agents, conversations, runs, step_tags, steps

T = TypeVar("T")

_i, _c = agent_imports.c, conversations.c
_IMPORT = msgspec.json.Decoder(AgentImport)
_ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, eq=False)
class AgentImportStore:
    """Imports in progress, and the parts of imported agents that the orchestrator stores.

    Every write for an import raises Aborted if a newer call continues it. What exists already is not written again, so
    that an import can be repeated.
    """

    database: Database
    clock: Clock

    async def resume(self, organization_id: str, request_id: str, fingerprint: str) -> AgentImport | None:
        """Returns the import of an earlier call, which this call continues, or None."""

        def write(conn: sa.Connection) -> AgentImport | None:
            return self._resume(conn, organization_id, request_id, fingerprint)

        return await self.database.write(write)

    def _resume(
        self, conn: sa.Connection, organization_id: str, request_id: str, fingerprint: str
    ) -> AgentImport | None:
        found = _read(conn, organization_id, request_id)
        if found is None:
            return None
        if found.fingerprint != fingerprint:
            raise RequestIdReused(
                "This request_id was used before for another import.", field="options.request_id", request_id=request_id
            )
        if found.report is not None:
            return found
        return self._write(conn, replace(found, attempt=found.attempt + 1))

    async def is_free(self, agent_id: str) -> bool:
        """Returns whether no organization has an agent with this id."""
        query = sa.select(agents.c.id).where(agents.c.id == agent_id)
        return await self.database.read(lambda conn: conn.execute(query).first() is None)

    async def begin(self, started: AgentImport, agent: Agent) -> AgentImport:
        """Stores a new import and its agent, which is invisible, or returns what another call has stored meanwhile.

        Raises:
            AlreadyExists: An agent has the id.
        """

        def write(conn: sa.Connection) -> AgentImport:
            other = self._resume(conn, started.organization_id, started.request_id, started.fingerprint)
            if other is not None:
                return other
            if conn.execute(sa.select(agents.c.id).where(agents.c.id == agent.id)).first() is not None:
                raise AlreadyExists(f"There is an agent {agent.id}.", resource_id=agent.id)
            note_change(conn, self.clock.now(), [agent.id])
            insert_agent(conn, agent)
            conn.execute(
                agent_imports.insert().values(
                    organization_id=started.organization_id,
                    request_id=started.request_id,
                    agent_id=agent.id,
                    is_done=False,
                    document=_ENCODE(started),
                    updated_at=self.clock.now(),
                )
            )
            return started

        return await self.database.write(write, name="agent_imports.begin")

    async def plan(self, started: AgentImport, record_ids: Iterable[str]) -> AgentImport:
        """Notes the records of shared things that this import creates, and returns the import."""
        planned = started.planned.union(record_ids)
        return await self._update(started, lambda conn: self._write(conn, replace(started, planned=planned)))

    async def put_conversations(self, started: AgentImport, conversations: Sequence[Conversation]) -> None:
        """Stores conversations. The default conversation of the agent exists; it gets the given values."""

        def write(conn: sa.Connection) -> None:
            for each in conversations:
                _put_conversation(conn, each)

        await self._update(started, write)

    async def put_runs(self, started: AgentImport, runs: Sequence[Run]) -> None:
        """Stores ended runs, in their order."""

        def write(conn: sa.Connection) -> None:
            for run in runs:
                _put_run(conn, run)

        await self._update(started, write)

    async def put_steps(self, started: AgentImport, steps: Sequence[Step]) -> frozenset[str]:
        """Stores steps of stored runs. Returns the ids of those whose run is not stored."""

        def write(conn: sa.Connection) -> frozenset[str]:
            return frozenset(step.id for step in steps if not _put_step(conn, step))

        return await self._update(started, write)

    async def activate(self, started: AgentImport, agent: Agent) -> None:
        """Makes the agent visible, with its final values. A repeat changes nothing."""
        values = agent_columns(replace(agent, state=AgentState.ACTIVE)) | {
            "last_stop_reason": agent.last_stop_reason,
            "last_run_completed_at": agent.last_run_completed_at,
            "last_run_ms": agent.last_run_ms,
        }
        is_importing = sa.and_(agents.c.id == agent.id, agents.c.state == AgentState.IMPORTING)

        def write(conn: sa.Connection) -> None:
            if conn.execute(agents.update().where(is_importing).values(**values)).rowcount:
                write_tags(conn, agent)
                write_links(conn, agent)

        await self._update(started, write)

    async def end(self, started: AgentImport, report: ImportReport) -> AgentImport:
        """Stores the report. It is kept as long as the agent."""
        return await self._update(started, lambda conn: self._write(conn, replace(started, report=report)))

    async def abandon(self, before: datetime) -> int:
        """Marks the agents of imports that were not continued since then for deletion. Returns their number."""
        late = sa.select(_i.agent_id).where(_i.is_done.is_(sa.false()), _i.updated_at < before)
        values = {
            "state": AgentState.DELETING,
            "creation": _ENCODE(Deletion()),
            "updated_at": self.clock.now(),
        }

        def write(conn: sa.Connection) -> int:
            importing = sa.and_(agents.c.id.in_(late), agents.c.state == AgentState.IMPORTING)
            return conn.execute(agents.update().where(importing).values(**values)).rowcount

        return await self.database.write(write)

    async def _update(self, started: AgentImport, change: Callable[[sa.Connection], T]) -> T:
        """Runs a change in a transaction, if no newer call continues the import. Raises Aborted."""

        def write(conn: sa.Connection) -> T:
            current = _read(conn, started.organization_id, started.request_id)
            if current is None or current.attempt != started.attempt:
                raise Aborted("Another call continues this import.", resource_id=started.agent_id)
            return change(conn)

        return await self.database.write(write, name="agent_imports.write")

    def _write(self, conn: sa.Connection, changed: AgentImport) -> AgentImport:
        values = {
            "document": _ENCODE(changed),
            "is_done": changed.report is not None,
            "updated_at": self.clock.now(),
        }
        conn.execute(agent_imports.update().where(*_is(changed.organization_id, changed.request_id)).values(**values))
        return changed


def _is(organization_id: str, request_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _i.organization_id == organization_id, _i.request_id == request_id


def _read(conn: sa.Connection, organization_id: str, request_id: str) -> AgentImport | None:
    query = sa.select(_i.document).where(*_is(organization_id, request_id))
    document = conn.execute(query).scalar()
    return None if document is None else _IMPORT.decode(document)


def _put_conversation(conn: sa.Connection, conversation: Conversation) -> None:
    values = conversation_columns(conversation) | {
        "last_message_at": conversation.last_message_at,
        "client_key": conversation.key,
        "created_at": conversation.created_at,
    }
    known = conversations.update().where(_c.id == conversation.id, _c.agent_id == conversation.agent_id)
    if conn.execute(known.values(**values)).rowcount == 0:
        conn.execute(conversations.insert(), new_conversation_row(conversation, ConversationState.ACTIVE))


def _put_run(conn: sa.Connection, run: Run) -> None:
    if conn.execute(sa.select(runs.c.id).where(runs.c.id == run.id)).first() is not None:
        return
    number = conn.execute(sa.select(_c.next_queue_number).where(_c.id == run.conversation_id)).scalar() or 1
    insert_run(conn, None, run, number)
    conn.execute(sql.ADVANCE_QUEUE, {"p_id": run.conversation_id, "new_next_queue_number": number + 1})
    sql.END_RUN.change(conn, ended_values(run) | {"new_updated_at": run.updated_at})


def _put_step(conn: sa.Connection, step: Step) -> bool:
    """Stores a step, and returns whether its run is stored."""
    if conn.execute(sa.select(runs.c.id).where(runs.c.id == step.run_id)).first() is None:
        return False
    if conn.execute(sa.select(steps.c.id).where(steps.c.id == step.id)).first() is not None:
        return True
    record_steps(conn, [step], (), step.run_id)
    if step.feedback is not None:
        conn.execute(steps.update().where(steps.c.id == step.id).values(feedback=step.feedback))
    if step.tags:
        conn.execute(step_tags.insert(), [{"step_id": step.id, "tag": tag} for tag in step.tags])
    return True
