"""Marks agents as DELETING, together with their partners and the sleeptime groups that end with them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from mnemesh_kit.ids import derive_id

from mnemesh_orchestrator.model.agents import Agent, AgentState, LinkKind
from mnemesh_orchestrator.model.erasure import Deletion, DeletionStart, ErasureScope
from mnemesh_orchestrator.model.group_changes import GroupChange
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group
from mnemesh_orchestrator.store.sql.agent_links import agents_with_link
from mnemesh_orchestrator.store.sql.agent_rows import decode_agent
from mnemesh_orchestrator.store.sql.group_changes import begin_change, mark_managers
from mnemesh_orchestrator.store.sql.group_rows import VISIBLE_STATES, decode_groups
from mnemesh_orchestrator.store.sql.tables import agents, conversations, group_members, groups


def mark_deleting(
    conn: sa.Connection, organization_id: str, agent_id: str, scope: ErasureScope, now: datetime
) -> DeletionStart:
    """Marks an agent and the partners that were created for it. See AgentStore.begin_deletion."""
    found = _rows(conn, organization_id, [agent_id])
    if not found or found[agent_id].state in (AgentState.CREATING, AgentState.IMPORTING):
        return DeletionStart()
    partner_ids = agents_with_link(conn, organization_id, LinkKind.CREATED_FOR, agent_id)
    rows = found | _rows(conn, organization_id, partner_ids)
    agent_ids = tuple(sorted(rows, key=lambda each: each == agent_id))
    new = [each for each in agent_ids if rows[each].state != AgentState.DELETING]
    group_ids = _end_groups(conn, organization_id, new, decode_agent(found[agent_id]), now)
    marked = {each: _stored(rows[each].creation) for each in agent_ids if each not in new}
    for each in new:
        deletion = Deletion(
            scope.unshared_blocks, scope.unshared_archives, tuple(other for other in agent_ids if other != each)
        )
        values = {"state": AgentState.DELETING, "updated_at": now, "creation": msgspec.json.encode(deletion)}
        conn.execute(agents.update().where(agents.c.id == each).values(**values))
        marked[each] = deletion
    # Holders of leases of the agents get LeaseLost at their next write.
    conn.execute(
        conversations.update()
        .where(conversations.c.agent_id.in_(agent_ids))
        .values(epoch=conversations.c.epoch + 1, lease_owner=None, lease_run_id=None, lease_expires_at=None)
    )
    return DeletionStart(tuple((each, marked[each]) for each in agent_ids), group_ids)


def _rows(conn: sa.Connection, organization_id: str, agent_ids: Sequence[str]) -> dict[str, Any]:
    if not agent_ids:
        return {}
    query = sa.select(agents).where(agents.c.organization_id == organization_id, agents.c.id.in_(agent_ids))
    return {row.id: row for row in conn.execute(query)}


def _stored(creation: bytes | None) -> Deletion:
    return msgspec.json.decode(creation, type=Deletion) if creation else Deletion()


def _end_groups(
    conn: sa.Connection, organization_id: str, agent_ids: Sequence[str], agent: Agent, now: datetime
) -> tuple[str, ...]:
    """Begins the deletion of the sleeptime groups that the agents manage, and of those without any other member.

    A manager that is kept and has no members any more no longer has enable_sleeptime. Returns the ids of the groups.
    """
    ended: list[str] = []
    for group in _sleeptime_groups(conn, organization_id, agent_ids):
        if group.manager.manager_agent_id in agent_ids or not set(group.agent_ids) - set(agent_ids):
            change = GroupChange(
                derive_id("group", agent.id, group.id, "deletion"),
                group.id,
                organization_id,
                now,
                agent.provenance.created_by_id,
            )
            begin_change(conn, change)
            if group.manager.manager_agent_id not in agent_ids:
                mark_managers(conn, group, None)
            ended.append(group.id)
    return tuple(ended)


def _sleeptime_groups(conn: sa.Connection, organization_id: str, agent_ids: Sequence[str]) -> tuple[Group, ...]:
    """Returns the sleeptime groups of which one of the agents is the manager or a member."""
    if not agent_ids:
        return ()
    of_members = sa.select(group_members.c.group_id).where(group_members.c.agent_id.in_(agent_ids))
    query = sa.select(groups).where(
        groups.c.organization_id == organization_id,
        groups.c.manager_type.in_(BACKGROUND_TYPES),
        groups.c.state.in_(VISIBLE_STATES),
        sa.or_(groups.c.manager_agent_id.in_(agent_ids), groups.c.id.in_(of_members)),
    )
    return decode_groups(conn, conn.execute(query).all())
