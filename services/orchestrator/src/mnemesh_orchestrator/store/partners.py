"""Partners that are created for ACTIVE agents."""

from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa
from mnemesh_kit.idempotency import Ledger, RequestKey
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.model.agents import Agent, AgentState, LinkKind
from mnemesh_orchestrator.model.creation import Partnership, PartnerStart
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group, GroupState
from mnemesh_orchestrator.store.agent_rows import (
    active,
    agent_columns,
    agents_with_link_query,
    being_created,
    decode_agent,
    insert_agent,
    rewrite,
)
from mnemesh_orchestrator.store.group_rows import (
    VISIBLE_STATES,
    decode_groups,
    insert_group,
    progress_columns,
    rewrite_group,
)
from mnemesh_orchestrator.store.tables import agents, groups, request_ledger


class PartnerStore:
    """Partners that are created for ACTIVE agents.

    AgentStore.activate stores those that are created together with their agent.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._ledger = Ledger(request_ledger, clock)

    async def begin(
        self,
        key: RequestKey | None,
        organization_id: str,
        agent_id: str,
        change: Callable[[Agent], Agent],
        create: Callable[[Agent, Group | None], tuple[Agent, bytes]],
    ) -> PartnerStart:
        """Applies an update of an agent whose sleeptime group has members, or stores a CREATING partner.

        A repeat under the same key changes nothing, and returns the state of the first request. A request while the
        partner of another request is CREATING changes and records nothing, and returns that partner. So does one for an
        agent whose partners are in none of its groups, and returns these.

        Args:
            key: Identifies the update.
            organization_id: The organization.
            agent_id: The agent.
            change: Returns the agent after the update. It is also called before a partner is stored.
            create: Returns the partner and the record of its creation, from the agent after the update and its
                sleeptime group without members, if it has one.

        Raises:
            NotFound: The agent is not ACTIVE.
            RequestIdReused: The key was used before with other content.
        """

        def effect(conn: sa.Connection) -> list[str]:
            before = active(conn, organization_id, agent_id)
            after, group = change(before), _group_of(conn, organization_id, agent_id)
            if group is not None and group.agent_ids:
                if after != before:
                    rewrite(conn, after)
                return [""]
            partner, creation = create(after, group)
            insert_agent(conn, partner, creation)
            return [partner.id]

        def write(conn: sa.Connection) -> PartnerStart:
            if key is None or self._ledger.find(conn, key) is None:
                waiting = _waiting(conn, active(conn, organization_id, agent_id))
                if waiting is not None:
                    return waiting
            (partner_id, *_), _ = self._ledger.once(conn, key, lambda: effect(conn))
            agent = active(conn, organization_id, agent_id)
            row = conn.execute(sa.select(agents).where(being_created(partner_id))).first()
            return PartnerStart(agent) if row is None else PartnerStart(agent, decode_agent(row), row.creation)

        return await self._database.write(write, name="partners.begin")

    async def activate(self, partnership: Partnership, agent_id: str, change: Callable[[Agent], Agent]) -> Agent | None:
        """Stores a CREATING partner as ACTIVE, and applies the update of its agent. Returns the agent.

        The group is inserted, or the partner joins it if it exists. Returns None, and stores nothing, if the partner
        has another state.

        Raises:
            NotFound: The agent is not ACTIVE.
            InvalidArgument: The agent manages another sleeptime group.
        """
        partner, group = partnership.partner, partnership.group
        columns = agent_columns(replace(partner, state=AgentState.ACTIVE))
        statement = agents.update().where(being_created(partner.id)).values(**columns, creation=None)

        def write(conn: sa.Connection) -> Agent | None:
            if conn.execute(statement).rowcount == 0:
                return None
            before = _group_of(conn, group.organization_id, agent_id)
            if before is not None and before.id == group.id:
                joined = (*before.agent_ids, *group.agent_ids)
                rewrite_group(conn, before, replace(before, agent_ids=joined, updated_at=group.updated_at))
            else:
                insert_group(
                    conn,
                    group,
                    GroupState.ACTIVE,
                    **progress_columns(partnership.start_sequence_id, group.turns_counter),
                )
            rewrite(conn, change(active(conn, group.organization_id, agent_id)))
            return active(conn, group.organization_id, agent_id)

        return await self._database.write(write, name="partners.activate")


def _waiting(conn: sa.Connection, agent: Agent) -> PartnerStart | None:
    """Returns what an update of an agent without a working partner has to wait for or to use, if there is any."""
    group = _group_of(conn, agent.organization_id, agent.id)
    if group is not None and group.agent_ids:
        return None
    created_for = agents_with_link_query(agent.organization_id, LinkKind.CREATED_FOR, agent.id)
    query = sa.select(agents).where(agents.c.id.in_(created_for)).order_by(agents.c.created_at, agents.c.id)
    idle: list[Agent] = []
    for row in conn.execute(query):
        if row.state == AgentState.CREATING:
            return PartnerStart(agent, decode_agent(row), row.creation, is_own=False)
        if row.state == AgentState.ACTIVE:
            idle.append(decode_agent(row))
    return PartnerStart(agent, idle=tuple(idle), group=group) if idle else None


def _group_of(conn: sa.Connection, organization_id: str, agent_id: str) -> Group | None:
    """Returns the sleeptime group that an agent manages, or None."""
    query = sa.select(groups).where(
        groups.c.organization_id == organization_id,
        groups.c.manager_agent_id == agent_id,
        groups.c.manager_type.in_(BACKGROUND_TYPES),
        groups.c.state.in_(VISIBLE_STATES),
    )
    return next(iter(decode_groups(conn, conn.execute(query).all())), None)
