"""Rows of agents. Fields that lists sort or filter by are columns; the others are a JSON document."""

from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.model.agents import Agent, AgentState, Correction
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.store.sql.agent_links import write_links
from mnemesh_orchestrator.store.sql.conversation_rows import new_row
from mnemesh_orchestrator.store.sql.tables import agent_tags, agents, conversations

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


def agent_columns(agent: Agent) -> dict[str, Any]:
    """Returns the columns that a change of an agent writes."""
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


def visible(organization_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects the ACTIVE agents of an organization."""
    return sa.and_(agents.c.organization_id == organization_id, agents.c.state == AgentState.ACTIVE)


def being_created(agent_id: str) -> sa.ColumnElement[bool]:
    """Returns the condition that selects an agent if it is CREATING."""
    return sa.and_(agents.c.id == agent_id, agents.c.state == AgentState.CREATING)


def active(conn: sa.Connection, organization_id: str, agent_id: str) -> Agent:
    """Returns an ACTIVE agent. Raises NotFound."""
    row = conn.execute(sa.select(agents).where(visible(organization_id), agents.c.id == agent_id)).first()
    if row is None:
        raise agent_missing(agent_id)
    return decode_agent(row)


def insert_agent(conn: sa.Connection, agent: Agent, creation: bytes | None = None) -> None:
    """Inserts an agent with its tags, its links and its default conversation.

    Raises:
        NotFound: An identity of the agent does not exist.
    """
    conn.execute(agents.insert().values(**agent_columns(agent), id=agent.id, creation=creation))
    write_tags(conn, agent)
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


def rewrite(conn: sa.Connection, agent: Agent) -> None:
    """Replaces the record of an agent, its tags and its links, under its next revision."""
    agent = replace(agent, revision=agent.revision + 1)
    conn.execute(agents.update().where(agents.c.id == agent.id).values(**agent_columns(agent)))
    conn.execute(agent_tags.delete().where(agent_tags.c.agent_id == agent.id))
    write_tags(conn, agent)
    write_links(conn, agent)


def write_tags(conn: sa.Connection, agent: Agent) -> None:
    """Inserts the tags of an agent that has none."""
    if agent.tags:
        rows = [{"organization_id": agent.organization_id, "tag": tag, "agent_id": agent.id} for tag in agent.tags]
        conn.execute(agent_tags.insert(), rows)
