"""The index of agents by identity, tool and provenance."""

from collections.abc import Iterator

import sqlalchemy as sa
from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.model.agents import Agent, LinkKind
from mnemesh_orchestrator.store.sql.tables import agent_links, identities


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


def write_links(conn: sa.Connection, agent: Agent) -> None:
    """Replaces the links of an agent.

    Raises:
        NotFound: An identity of the agent does not exist.
    """
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
    if rows:
        conn.execute(agent_links.insert(), rows)


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
