"""Agents are deleted with their partners and groups, whatever fails meanwhile."""

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import ErasureScope
from mnemesh_orchestrator.model.groups import Group
from mnemesh_types.blocks import Block

from ..support.faults import Crash, Faults
from ..support.pairs import (
    SAMPLED,
    SHARDS,
    agents_of,
    create,
    finish_all,
    groups_of,
    labels,
    nothing_is_left,
    pair,
    require_shared,
    switch_on,
)
from ..support.world import ME, Process, World


@pytest.mark.parametrize("scope", [ErasureScope(), ErasureScope(unshared_blocks=True, unshared_archives=True)])
async def test_deletion_of_an_agent_deletes_its_partner_and_their_group(
    world: World, process: Process, scope: ErasureScope
) -> None:
    agent, partner, _ = await pair(process, (await create(process)).id)
    await world.blocks.create("r-1", partner.id, Block(label="found", value="By the partner."))
    await world.archival.insert("r-2", partner.id, "A passage.")
    erased = await process.lifecycle.delete(ME, agent.id, scope)
    assert (erased.agents, erased.contexts, erased.deleted_blocks, erased.archives, erased.passages) == (2, 2, 4, 1, 1)
    await nothing_is_left(world, process)
    assert (await process.lifecycle.delete(ME, agent.id)).agents == 0
    for gone in (agent, partner):
        with pytest.raises(NotFound):
            await process.agents.get(ME, gone.id)


@pytest.mark.parametrize("shard", SAMPLED)
async def test_crash_at_any_point_of_a_deletion_leaves_nothing(world: World, shard: int) -> None:
    whole = world.process()
    agent = await create(whole, "whole")
    start = whole.faults.points
    await whole.lifecycle.delete(ME, agent.id)
    for point in range(shard, whole.faults.points - start, SHARDS):
        world.faults = Faults()
        agent = await create(world.process(), f"r-{point}")
        world.faults = Faults()
        world.faults.crashes_at = point
        with pytest.raises(Crash):
            await world.process().lifecycle.delete(ME, agent.id)
        world.faults = Faults()
        process = world.process()
        assert len(await agents_of(process)) in (0, 2), point
        assert len(await groups_of(process)) in (0, 1), point
        if await agents_of(process):
            await process.lifecycle.delete(ME, agent.id)
        await finish_all(process)
        await nothing_is_left(world, process)


async def a_second_partner(world: World, process: Process, group: Group) -> Agent:
    """Adds a member to a group, as a client may."""
    second = await world.agent(process, AgentType.SLEEPTIME, name="Second", blocks=())
    await process.groups.update(ME, None, group.id, {"agent_ids": (*group.agent_ids, second.id)})
    return second


async def test_deletion_of_an_agent_keeps_partners_that_a_client_added(world: World, process: Process) -> None:
    agent, _, group = await pair(process, (await create(process)).id)
    second = await a_second_partner(world, process, group)
    third = await world.agent(process, name="Third", blocks=())
    erased = await process.lifecycle.delete(ME, agent.id)
    assert (erased.agents, await groups_of(process)) == (2, [])
    assert {found.id for found in await agents_of(process)} == {second.id, third.id}
    assert await labels(world, second) == {"human", "persona"}, "another agent holds these blocks"
    await world.blocks.link("r-9", "another link", (third.id, second.id), third.id)


async def test_deletion_of_the_last_partner_ends_the_group(world: World, process: Process) -> None:
    agent, partner, group = await pair(process, (await create(process)).id)
    second = await a_second_partner(world, process, group)
    await process.lifecycle.delete(ME, partner.id)
    (left,) = await groups_of(process)
    assert left.agent_ids == (second.id,)
    assert (await process.agents.get(ME, agent.id)).enable_sleeptime
    await world.blocks.create("r-1", second.id, Block(label="shared", value="Still."))
    erased = await process.lifecycle.delete(ME, second.id)
    assert (erased.agents, erased.deleted_blocks) == (1, 0)
    assert await groups_of(process) == []
    assert not (await process.agents.get(ME, agent.id)).enable_sleeptime
    assert await labels(world, agent) == {"human", "persona", "shared"}
    await switch_on(process, agent.id)
    await require_shared(world, process, agent.id)
