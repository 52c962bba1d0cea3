"""Agents with partners, and checks of what they share."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import Agent, AgentFilter, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.groups import Group, GroupFilter, GroupOrder
from mnemesh_types.blocks import Block
from mnemesh_types.provenance import Provenance

from .world import ME, SYSTEM, Process, World

DRAFT = AgentDraft(
    AgentType.LETTA_V1,
    name="Ada's",
    system=SYSTEM,
    blocks=(Block(label="human", value="Ada."), Block(label="persona", value="A friend.", read_only=True)),
    enable_sleeptime=True,
    provenance=Provenance(project_id="project-1"),
)
ALL = PageQuery(100, ascending=True)


def key(request_id: str = "r-1", method: str = "CreateAgent") -> RequestKey:
    return RequestKey(ME.organization_id, method, request_id, "f")


async def agents_of(process: Process) -> list[Agent]:
    return list((await process.agents.list(ME, AgentFilter(), "created_at", ALL)).items)


async def groups_of(process: Process) -> list[Group]:
    page = await process.stores.groups.list(ME.organization_id, GroupFilter(), GroupOrder.CREATED_AT, ALL)
    return list(page.items)


async def pair(process: Process, agent_id: str) -> tuple[Agent, Agent, Group]:
    """Returns an agent, its only partner and their group."""
    (group,) = await process.stores.groups.of_manager(ME.organization_id, agent_id)
    (partner_id,) = group.agent_ids
    return await process.agents.get(ME, agent_id), await process.agents.get(ME, partner_id), group


async def labels(world: World, agent: Agent) -> set[str]:
    memory = await world.blocks.get(agent.id)
    assert memory is not None
    return {block.label for block in memory.blocks}


async def require_shared(world: World, process: Process, agent_id: str) -> None:
    """Checks that an agent and its partner have all that they need, once."""
    agent, partner, group = await pair(process, agent_id)
    assert agent.enable_sleeptime
    assert partner.created_for_agent_id == agent.id
    assert await labels(world, partner) == {"memory_persona", *await labels(world, agent)}
    archives = await world.archival.archives_of(agent.id)
    assert len(archives) == 1
    assert await world.archival.archives_of(partner.id) == archives
    assert [message.role.value for message in world.window(partner).messages] == ["system", "user"]
    assert group.manager.manager_agent_id == agent.id


async def finish_all(process: Process) -> None:
    await process.lifecycle.finish_all()
    await process.group_changes.finish_all()


async def nothing_is_left(world: World, process: Process) -> None:
    assert await process.stores.groups.list_unfinished() == ()
    assert await process.stores.agents.list_unfinished() == ()
    assert await agents_of(process) == []
    assert await groups_of(process) == []
    assert world.blocks.blocks == {}
    assert world.archival.archives() == []
    assert world.recall.windows == {}


async def create(process: Process, request_id: str = "r-1") -> Agent:
    return await process.lifecycle.create(ME, key(request_id), DRAFT)


async def switch_on(process: Process, agent_id: str, request_id: str = "r-1", **more: Any) -> Agent:
    changes = {"enable_sleeptime": True, **more}
    return await process.agents.update(ME, key(request_id, "UpdateAgent"), agent_id, changes)


SHARDS = 6
SAMPLED = [pytest.param(number, marks=() if number == 0 else pytest.mark.full) for number in range(SHARDS)]


CALLS = ["blocks.create", "blocks.get", "blocks.link", "archival.archives_of", "archival.create", "archival.attach"]


def refusing(error: Exception) -> Callable[..., Awaitable[None]]:
    async def refuse(*_: Any, **__: Any) -> None:
        raise error

    return refuse
