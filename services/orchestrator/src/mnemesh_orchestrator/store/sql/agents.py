"""Agents, and the default conversation of each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import NotFound
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.paging import Cursor, Page, PageQuery, paginate
from mnemesh_kit.sql import Database

from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder, AgentState, Correction
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.model.erasure import CREATED_FOR_AGENT, ErasureScope
from mnemesh_orchestrator.store.sql.agent_filters import agent_conditions
from mnemesh_orchestrator.store.sql.agent_links import write_links
from mnemesh_orchestrator.store.sql.conversation_rows import new_row
from mnemesh_orchestrator.store.sql.tables import (
    agent_tags,
    agents,
    conversations,
    request_ledger,
    runs,
)

_AGENT = msgspec.json.Decoder(Agent)
_CORRECTIONS = msgspec.json.Decoder(tuple[Correction, ...])
_ENCODE = msgspec.json.Encoder().encode


def decode_agent(row: Any) -> Agent:
    """Returns the agent of a row of `agents`.

    The state and the figures of the last run change without the rest, so they are columns.
    """
    agent = _AGENT.decode(row.document)
    return replace(
        agent,
        state=AgentState(row.state),
        last_stop_reason=row.last_stop_reason,
        last_run_completed_at=row.last_run_completed_at,
        last_run_ms=row.last_run_ms,
        corrections=_CORRECTIONS.decode(row.corrections) if row.corrections else (),
    )


def agent_missing(agent_id: str) -> NotFound:
    """Returns the error for an agent that does not exist or is not ACTIVE."""
    return NotFound(f"There is no agent {agent_id}.", resource_id=agent_id)


class SqlAgentStore:
    """AgentStore on SQLite or PostgreSQL."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(request_ledger, clock)

    async def begin_creation(self, key: RequestKey | None, agent: Agent, creation: bytes) -> tuple[str, bool]:
        """See AgentStore."""

        def effect(conn: sa.Connection) -> list[str]:
            conn.execute(agents.insert().values(**_columns(agent), id=agent.id, creation=creation))
            _write_tags(conn, agent)
            write_links(conn, agent)
            conversation = Conversation(
                agent.default_conversation_id,
                agent.organization_id,
                agent.id,
                is_default=True,
                created_at=agent.created_at,
                updated_at=agent.updated_at,
            )
            conn.execute(conversations.insert(), new_row(conversation, ConversationState.ACTIVE))
            return [agent.id]

        def write(conn: sa.Connection) -> tuple[str, bool]:
            ids, replayed = self._ledger.once(conn, key, lambda: effect(conn))
            return ids[0], replayed

        return await self._database.write(write)

    async def unfinished(self) -> tuple[tuple[Agent, bytes], ...]:
        """See AgentStore."""
        states = (AgentState.CREATING, AgentState.DELETING)
        query = sa.select(agents).where(agents.c.state.in_(states)).order_by(agents.c.created_at)
        rows = await self._database.read(lambda conn: conn.execute(query).all())
        return tuple((decode_agent(row), row.creation or b"") for row in rows)

    async def creation(self, organization_id: str, agent_id: str) -> tuple[Agent, bytes] | None:
        """See AgentStore."""
        query = sa.select(agents).where(
            agents.c.organization_id == organization_id,
            agents.c.id == agent_id,
            agents.c.state == AgentState.CREATING,
        )
        row = await self._database.read(lambda conn: conn.execute(query).first())
        return None if row is None else (decode_agent(row), row.creation)

    async def activate(self, agent: Agent) -> bool:
        """See AgentStore."""
        columns = _columns(replace(agent, state=AgentState.ACTIVE))
        statement = agents.update().where(_being_created(agent.id)).values(**columns, creation=None)
        return await self._database.write(lambda conn: conn.execute(statement).rowcount > 0)

    async def abandon(self, agent_id: str, key: RequestKey | None) -> bool:
        """See AgentStore."""

        def write(conn: sa.Connection) -> bool:
            values = {"state": AgentState.DELETING, "creation": None, "updated_at": self._clock.now()}
            if conn.execute(agents.update().where(_being_created(agent_id)).values(**values)).rowcount == 0:
                return False
            self._ledger.forget(conn, key)
            return True

        return await self._database.write(write)

    async def remove(self, agent_id: str) -> None:
        """See AgentStore."""

        def write(conn: sa.Connection) -> None:
            conn.execute(runs.delete().where(runs.c.agent_id == agent_id))
            conn.execute(agents.delete().where(agents.c.id == agent_id))

        await self._database.write(write)

    async def get(self, organization_id: str, agent_id: str) -> Agent:
        """See AgentStore."""
        return await self._database.read(lambda conn: active(conn, organization_id, agent_id))

    async def list(
        self, organization_id: str, filter_: AgentFilter, order_by: AgentOrder, page: PageQuery
    ) -> Page[Agent]:
        """See AgentStore."""
        query = sa.select(agents).where(_visible(organization_id), *agent_conditions(organization_id, filter_))

        def read(conn: sa.Connection) -> Page[Agent]:
            found = paginate(conn, query, page, key=agents.c[order_by], id=agents.c.id, scope=_visible(organization_id))
            return found.map(decode_agent)

        return await self._database.read(read)

    async def count(self, organization_id: str, filter_: AgentFilter) -> int:
        """See AgentStore."""
        query = sa.select(sa.func.count()).select_from(agents)
        query = query.where(_visible(organization_id), *agent_conditions(organization_id, filter_))
        return await self._database.read(lambda conn: int(conn.execute(query).scalar_one()))

    async def update(
        self, key: RequestKey | None, organization_id: str, agent_id: str, change: Callable[[Agent], Agent]
    ) -> Agent:
        """See AgentStore."""

        def effect(conn: sa.Connection) -> list[str]:
            before = active(conn, organization_id, agent_id)
            if (after := change(before)) != before:
                rewrite(conn, after)
            return [agent_id]

        def write(conn: sa.Connection) -> Agent:
            self._ledger.once(conn, key, lambda: effect(conn))
            return active(conn, organization_id, agent_id)

        return await self._database.write(write)

    async def record_request(self, key: RequestKey | None) -> bool:
        """See AgentStore."""
        return await self._database.write(lambda conn: self._ledger.once(conn, key, tuple)[1])

    async def outcome(self, key: RequestKey) -> str | None:
        """See AgentStore."""
        found = await self._database.read(lambda conn: self._ledger.find(conn, key))
        return None if found is None else "".join(found[:1])

    async def record_outcome(self, key: RequestKey, outcome: str) -> str:
        """See AgentStore."""
        return await self._database.write(lambda conn: self._ledger.once(conn, key, lambda: (outcome,))[0][0])

    async def begin_deletion(
        self, organization_id: str, agent_id: str, scope: ErasureScope = CREATED_FOR_AGENT
    ) -> ErasureScope | None:
        """See AgentStore."""

        def write(conn: sa.Connection) -> ErasureScope | None:
            marked = conn.execute(
                agents.update()
                .where(
                    agents.c.organization_id == organization_id,
                    agents.c.id == agent_id,
                    agents.c.state != AgentState.CREATING,
                )
                .values(
                    state=AgentState.DELETING,
                    updated_at=self._clock.now(),
                    creation=sa.func.coalesce(agents.c.creation, msgspec.json.encode(scope)),
                )
                .returning(agents.c.creation)
            ).first()
            if marked is None:
                return None
            # Holders of leases of the agent get LeaseLost at their next write.
            conn.execute(
                conversations.update()
                .where(conversations.c.agent_id == agent_id)
                .values(epoch=conversations.c.epoch + 1, lease_owner=None, lease_run_id=None, lease_expires_at=None)
            )
            return msgspec.json.decode(marked.creation, type=ErasureScope)

        return await self._database.write(write)

    async def tags(self, organization_id: str, page: PageQuery, text_search: str | None) -> Page[str]:
        """See AgentStore."""
        scope = agent_tags.c.organization_id == organization_id
        visible = sa.select(agents.c.id).where(_visible(organization_id))
        query = sa.select(agent_tags.c.tag).where(scope, agent_tags.c.agent_id.in_(visible)).distinct()
        if text_search:
            query = query.where(sa.func.lower(agent_tags.c.tag).contains(text_search.lower(), autoescape=True))
        bounds = [bound for bound in (page.after_id, page.cursor and page.cursor.id) if bound]
        for bound in bounds:
            query = query.where(agent_tags.c.tag > bound if page.ascending else agent_tags.c.tag < bound)
        if page.before_id:
            query = query.where(
                agent_tags.c.tag < page.before_id if page.ascending else agent_tags.c.tag > page.before_id
            )
        order = agent_tags.c.tag.asc() if page.ascending else agent_tags.c.tag.desc()
        query = query.order_by(order).limit(page.limit + 1)
        found = await self._database.read(lambda conn: conn.execute(query).scalars().all())
        tags = tuple(found[: page.limit])
        return Page(tags, Cursor(tags[-1], tags[-1]) if len(found) > page.limit else None)


def active(conn: sa.Connection, organization_id: str, agent_id: str) -> Agent:
    """Returns an ACTIVE agent. Raises NotFound."""
    row = conn.execute(sa.select(agents).where(_visible(organization_id), agents.c.id == agent_id)).first()
    if row is None:
        raise agent_missing(agent_id)
    return decode_agent(row)


def rewrite(conn: sa.Connection, agent: Agent) -> None:
    """Replaces the record of an agent, its tags and its links, under its next revision."""
    agent = replace(agent, revision=agent.revision + 1)
    conn.execute(agents.update().where(agents.c.id == agent.id).values(**_columns(agent)))
    conn.execute(agent_tags.delete().where(agent_tags.c.agent_id == agent.id))
    _write_tags(conn, agent)
    write_links(conn, agent)


def _visible(organization_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(agents.c.organization_id == organization_id, agents.c.state == AgentState.ACTIVE)


def _being_created(agent_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(agents.c.id == agent_id, agents.c.state == AgentState.CREATING)


def _columns(agent: Agent) -> dict[str, Any]:
    return {
        "organization_id": agent.organization_id,
        "name": agent.name,
        "type": agent.type,
        "state": agent.state,
        "hidden": agent.hidden,
        "document": _ENCODE(agent),
        "created_at": agent.created_at,
        "updated_at": agent.updated_at,
    }


def _write_tags(conn: sa.Connection, agent: Agent) -> None:
    if agent.tags:
        rows = [{"organization_id": agent.organization_id, "tag": tag, "agent_id": agent.id} for tag in agent.tags]
        conn.execute(agent_tags.insert(), rows)
