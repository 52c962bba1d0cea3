"""Agents and blocks for tests of groups."""

from dataclasses import dataclass
from typing import Any

from mnemesh_kit.idempotency import RequestKey
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.groups import Group, GroupFilter
from mnemesh_types.blocks import Block

from .world import ME, Process, World


def key(method: str = "CreateGroup", request_id: str = "r-1", fingerprint: str = "f") -> RequestKey:
    return RequestKey(ME.organization_id, method, request_id, fingerprint)


@dataclass
class Cast:
    """Four agents, two blocks to share, and an agent that holds another block under the label of the first."""

    world: World
    agents: list[Agent]
    plan: str
    notes: str
    own_plan: Agent

    def group(self, *members: int, **fields: Any) -> Group:
        """Returns the draft of a group with these of the agents."""
        ids = tuple(self.agents[index].id for index in members)
        return Group("", "", self.agents[0].created_at, self.agents[0].created_at, agent_ids=ids, **fields)

    def holders(self, block_id: str) -> str:
        """Returns the indexes of the agents that hold a block."""
        held = self.world.blocks.held
        return "".join(str(index) for index, agent in enumerate(self.agents) if block_id in held.get(agent.id, ()))


async def new_cast(world: World, process: Process) -> Cast:
    """Creates the agents and the blocks."""
    agents = [await world.agent(process, name=name) for name in ("Zoe", "Ada", "Max", "Eve")]
    owner = await world.agent(
        process, name="Owner", blocks=(Block(label="plan", value="Win."), Block(label="notes", value="None."))
    )
    plan, notes = world.blocks.held[owner.id]
    own_plan = await world.agent(process, blocks=(Block(label="plan", value="Mine."),))
    return Cast(world, agents, plan, notes, own_plan)


async def no_group_is_left(process: Process) -> None:
    """Checks that there is no group, visible or not."""
    assert await process.groups.count(ME, GroupFilter()) == 0
    assert await process.stores.groups.list_unfinished() == ()
