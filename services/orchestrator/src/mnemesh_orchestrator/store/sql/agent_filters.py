"""Filters of agents as conditions."""

import sqlalchemy as sa

from mnemesh_orchestrator.model.agents import AgentFilter, LinkKind
from mnemesh_orchestrator.store.sql.agent_links import agents_with_link_query
from mnemesh_orchestrator.store.sql.tables import (
    agent_links,
    agent_tags,
    agents,
    identities,
)


def agent_conditions(organization_id: str, filter_: AgentFilter) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions that a filter sets."""
    conditions: list[sa.ColumnElement[bool]] = []
    if filter_.agent_ids:
        conditions.append(agents.c.id.in_(filter_.agent_ids))
    if filter_.name is not None:
        conditions.append(agents.c.name == filter_.name)
    if filter_.text_search:
        conditions.append(sa.func.lower(agents.c.name).contains(filter_.text_search.lower(), autoescape=True))
    if filter_.types:
        conditions.append(agents.c.type.in_(filter_.types))
    if filter_.hidden is not None:
        conditions.append(agents.c.hidden == filter_.hidden)
    if filter_.last_stop_reason is not None:
        conditions.append(agents.c.last_stop_reason == filter_.last_stop_reason)
    conditions.extend(
        agents.c.id.in_(agents_with_link_query(organization_id, kind, value)) for kind, value in filter_.links
    )
    if filter_.identifier_key is not None:
        keyed = sa.select(identities.c.id).where(
            identities.c.organization_id == organization_id, identities.c.identifier_key == filter_.identifier_key
        )
        conditions.append(
            agents.c.id.in_(
                sa.select(agent_links.c.agent_id).where(
                    agent_links.c.organization_id == organization_id,
                    agent_links.c.kind == LinkKind.IDENTITY,
                    agent_links.c.value.in_(keyed),
                )
            )
        )
    tagged = sa.select(agent_tags.c.agent_id).where(agent_tags.c.organization_id == organization_id)
    if filter_.tags_any:
        conditions.append(agents.c.id.in_(tagged.where(agent_tags.c.tag.in_(filter_.tags_any))))
    conditions.extend(agents.c.id.in_(tagged.where(agent_tags.c.tag == tag)) for tag in filter_.tags_all)
    return conditions
