"""The runs of groups before they are stored: who speaks, and under which settings."""

from dataclasses import replace

from mnemesh_kit.errors import Unimplemented
from mnemesh_kit.paging import PageQuery

from mnemesh_orchestrator.errors import GroupUnusable
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentOrder
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.groups import BACKGROUND_TYPES, Group, GroupPlan, ManagerType, Speaker
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.base import AgentStore, GroupStore


class GroupPlanner:
    """Addresses runs to groups."""

    def __init__(self, groups: GroupStore, agents: AgentStore) -> None:
        self._groups = groups
        self._agents = agents

    async def planned(self, run: Run, group_id: str) -> Run:
        """Returns a run as one of a group: with the plan of its turns, or, for a sleeptime group, as its manager's.

        Raises:
            NotFound: The group does not exist.
            GroupUnusable: The group has no members, or its manager was deleted.
            Unimplemented: The members of the group hand over to one another.
        """
        group = await self._groups.get(run.organization_id, group_id)
        if group.manager.type is ManagerType.SWARM:
            raise Unimplemented(
                "This server does not run swarm groups. Change the group's manager_config to another kind.",
                field="group_id",
                resource_id=group_id,
            )
        agents = await self._agents_of(group)
        members = tuple(_speaker(agents[id_]) for id_ in group.agent_ids if id_ in agents)
        if not members:
            raise GroupUnusable("The group has no members. Add agents to it.", resource_id=group_id)
        manager_id = group.manager.manager_agent_id
        if manager_id is not None and manager_id not in agents:
            raise GroupUnusable("The manager of the group was deleted. Name another agent.", resource_id=group_id)
        run = replace(run, group_id=group_id)
        if manager_id is not None and group.manager.type in BACKGROUND_TYPES:
            return replace(run, agent_id=manager_id, conversation_id=default_conversation_id(manager_id))
        manager_name = agents[manager_id].name if manager_id is not None else None
        plan = GroupPlan(group_id, group.manager, members, manager_name)
        return replace(run, agent_id="", conversation_id=group.conversation_id, plan=plan)

    async def _agents_of(self, group: Group) -> dict[str, Agent]:
        wanted = AgentFilter(agent_ids=group.all_agent_ids)
        page = PageQuery(max(1, len(group.all_agent_ids)), ascending=True)
        if not wanted.agent_ids:
            return {}
        found = await self._agents.list(group.organization_id, wanted, AgentOrder.CREATED_AT, page)
        return {agent.id: agent for agent in found.items}


def _speaker(agent: Agent) -> Speaker:
    return Speaker(agent.id, agent.name, agent.description or "")
