"""The rows of agents, of their links and conversations."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from mnemesh_kit.errors import NotFound
from mnemesh_kit.sql.prepared import Prepared

from mnemesh_orchestrator.model.agents import Agent, AgentState, Correction, LinkKind
from mnemesh_orchestrator.model.conversations import Conversation, ConversationState
from mnemesh_orchestrator.store.tables import (
    agent_links,
    agent_tags,
    agents,
    conversations,
    identities,
)

_CONVERSATION = msgspec.json.Decoder(Conversation)
_ENCODE = msgspec.json.Encoder().encode

_AGENT = msgspec.json.Decoder(Agent)
_CORRECTIONS = msgspec.json.Decoder(tuple[Correction, ...])


def links_of(agent: Agent) -> Iterator[tuple[LinkKind, str]]:
    """Yields the links of an agent as kind and value, each once."""
    yield from dict.fromkeys((LinkKind.IDENTITY, identity_id) for identity_id in agent.identity_ids)
    yield from dict.fromkeys((LinkKind.TOOL, tool.tool_id) for tool in agent.tools if tool.tool_id is not None)
    if agent.created_for_agent_id is not None:
        yield LinkKind.CREATED_FOR, agent.created_for_agent_id
    for kind in LinkKind.of_origin():
        value = getattr(agent.provenance, kind)
        if value:
            yield kind, value


_INSERT_AGENT: Final = Prepared(agents.insert())
_INSERT_CONVERSATION: Final = Prepared(conversations.insert())
_INSERT_LINK: Final = Prepared(agent_links.insert())
_INSERT_TAG: Final = Prepared(agent_tags.insert())


def write_links(conn: sa.Connection, agent: Agent, *, replaces: bool = True) -> None:
    """Writes the links of an agent. Without `replaces`, it has none."""
    if replaces:
        scope = agent_links.c.organization_id == agent.organization_id
        conn.execute(agent_links.delete().where(scope, agent_links.c.agent_id == agent.id))
    if agent.identity_ids:
        known = sa.select(identities.c.id).where(
            identities.c.organization_id == agent.organization_id, identities.c.id.in_(agent.identity_ids)
        )
        missing = set(agent.identity_ids) - set(conn.execute(known).scalars())
        if missing:
            first = min(missing)
            raise NotFound(f"There is no identity {first}.", field="agent.identity_ids", resource_id=first)
    rows = [
        {"organization_id": agent.organization_id, "kind": kind, "value": value, "agent_id": agent.id}
        for kind, value in links_of(agent)
    ]
    _INSERT_LINK.send_each(conn, rows)


def write_tool_links(conn: sa.Connection, agent: Agent) -> None:
    """Writes the links to the tools of an agent, which were not known when its other links were written."""
    rows = [
        {"organization_id": agent.organization_id, "kind": kind, "value": value, "agent_id": agent.id}
        for kind, value in links_of(agent)
        if kind is LinkKind.TOOL
    ]
    if rows:
        written = sa.and_(agent_links.c.agent_id == agent.id, agent_links.c.kind == LinkKind.TOOL)
        conn.execute(agent_links.delete().where(written))
        conn.execute(agent_links.insert(), rows)


def agents_with_link(conn: sa.Connection, organization_id: str, kind: LinkKind, value: str) -> tuple[str, ...]:
    """Returns the ids of the agents with a link."""
    return tuple(map(str, conn.execute(agents_with_link_query(organization_id, kind, value)).scalars()))


def agents_with_link_query(organization_id: str, kind: LinkKind, value: str) -> sa.Select[tuple[str]]:
    """Returns the query for the ids of the agents with a link."""
    return sa.select(agent_links.c.agent_id).where(
        agent_links.c.organization_id == organization_id, agent_links.c.kind == kind, agent_links.c.value == value
    )


def new_conversation_row(
    conversation: Conversation, state: ConversationState, creation: bytes | None = None
) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "organization_id": conversation.organization_id,
        "agent_id": conversation.agent_id,
        "is_default": conversation.is_default,
        "state": state,
        "creation": creation,
        "last_message_at": conversation.last_message_at,
        "client_key": conversation.key,
        "created_at": conversation.created_at,
        "epoch": 0,
        "next_queue_number": 1,
        **conversation_columns(conversation),
    }


def conversation_columns(conversation: Conversation) -> dict[str, Any]:
    """Returns the columns that a change of a conversation writes. Runs write the column `last_message_at`."""
    return {
        "archived": conversation.archived,
        "summary": conversation.summary,
        "document": _ENCODE(replace(conversation, last_message_at=None)),
        "updated_at": conversation.updated_at,
    }


def decode_conversation(document: bytes) -> Conversation:
    """Returns the conversation of a document, without `last_message_at`."""
    return _CONVERSATION.decode(document)


def conversation_of(row: Any) -> Conversation:
    return replace(decode_conversation(row.document), last_message_at=row.last_message_at)


def conversation_missing(conversation_id: str) -> NotFound:
    """Returns the error for a conversation that does not exist or is not ACTIVE."""
    return NotFound(f"There is no conversation {conversation_id}.", resource_id=conversation_id)


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
    """Inserts an agent with its tags, its links and its default conversation."""
    _INSERT_AGENT.send(conn, {**agent_columns(agent), "id": agent.id, "creation": creation})
    write_tags(conn, agent)
    write_links(conn, agent, replaces=False)
    conversation = Conversation(
        id=agent.default_conversation_id,
        organization_id=agent.organization_id,
        agent_id=agent.id,
        is_default=True,
        created_at=agent.created_at,
        updated_at=agent.updated_at,
    )
    _INSERT_CONVERSATION.send(conn, new_conversation_row(conversation, ConversationState.ACTIVE))


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
        _INSERT_TAG.send_each(conn, rows)
