"""Partners of agents that switch sleep-time on and off, whatever fails meanwhile."""

import asyncio
from dataclasses import replace

import pytest
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.errors import AgentRevisionMismatch, GroupChanged
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.groups import Group, ManagerConfig, ManagerType
from mnemesh_testkit.plugin import sampled
from mnemesh_types.blocks import Block

from ..support.faults import Crash, Faults
from ..support.pairs import (
    CALLS,
    SAMPLED,
    SHARDS,
    agents_of,
    create,
    finish_all,
    key,
    nothing_is_left,
    pair,
    refusing,
    require_shared,
    switch_on,
)
from ..support.world import ME, Process, World


async def test_switched_on_agent_gets_a_partner_and_keeps_its_tools(world: World, process: Process) -> None:
    agent = await world.agent(process)
    for _ in range(2):
        changed = await switch_on(process, agent.id, name="Renamed")
        assert (changed.enable_sleeptime, changed.name, changed.revision) == (True, "Renamed", 2)
    assert changed.tools == agent.tools
    await require_shared(world, process, agent.id)
    again = await switch_on(process, agent.id, "r-2", description="Again")
    assert again.description == "Again"
    assert (await pair(process, agent.id))[1].name == "Renamed-sleeptime"
    assert len(await agents_of(process)) == 2


async def test_new_group_begins_with_the_count_of_turns_of_the_update(world: World, process: Process) -> None:
    agent, on = await world.agent(process), {"enable_sleeptime": True}
    await process.agents.update(ME, None, agent.id, on, sleeptime_turns_counter=-1)
    _, _, group = await pair(process, agent.id)
    assert group.turns_counter == -1
    await process.agents.update(ME, None, agent.id, on, sleeptime_turns_counter=3)
    assert (await pair(process, agent.id))[2] == group, "a group that exists keeps its count"
    await process.groups.delete(ME, None, group.id)
    await process.agents.update(ME, None, agent.id, on, sleeptime_turns_counter=3)
    assert (await pair(process, agent.id))[2].turns_counter == 3
    with pytest.raises(InvalidArgument, match="sleeptime_turns_counter"):
        await process.agents.update(ME, None, agent.id, on, sleeptime_turns_counter=-2)


async def test_switched_off_agent_keeps_its_partner(world: World, process: Process) -> None:
    agent = await create(process)
    _, partner, group = await pair(process, agent.id)
    renamed = await process.agents.update(ME, None, agent.id, {"name": "Other"})
    assert renamed.enable_sleeptime
    off = await process.agents.update(ME, None, agent.id, {"enable_sleeptime": False})
    assert off.enable_sleeptime is False
    assert await pair(process, agent.id) == (off, partner, group)
    on = await switch_on(process, agent.id)
    assert on.enable_sleeptime
    assert await pair(process, agent.id) == (on, partner, group)


@pytest.mark.parametrize("shard", SAMPLED)
@pytest.mark.parametrize("continues", ["repeat", "sweeper"])
async def test_crash_at_any_point_of_a_switch_on_leaves_nothing_incomplete(
    world: World, continues: str, shard: int
) -> None:
    first = world.process()
    whole = await world.agent(first)
    start = first.faults.points
    await switch_on(first, whole.id, "whole")
    for point in range((shard + 3 * (continues == "repeat")) % SHARDS, first.faults.points - start, SHARDS):
        world.faults = Faults()
        agent = await world.agent(world.process())
        world.faults = Faults()
        world.faults.crashes_at = point
        with pytest.raises(Crash):
            await switch_on(world.process(), agent.id, f"r-{point}", name="Renamed")
        world.faults = Faults()
        process = world.process()
        found = await process.agents.get(ME, agent.id)
        groups = await process.stores.groups.of_manager(ME.organization_id, agent.id)
        assert bool(found.enable_sleeptime) == bool(groups) == (found.name == "Renamed"), point
        if continues == "sweeper":
            world.clock.advance(61)
            await process.lifecycle.finish_all()
            assert await process.stores.agents.list_unfinished() == (), point
        changed = await switch_on(process, agent.id, f"r-{point}", name="Renamed")
        assert (changed.name, changed.revision) == ("Renamed", 2), point
        await require_shared(world, process, agent.id)


@pytest.mark.parametrize("fault", ["unavailable", "lost"])
@pytest.mark.parametrize("call", sampled([*CALLS, "recall.create_context", "partners.begin", "partners.activate"], 3))
async def test_switch_on_during_an_outage_continues_with_its_repeat(
    world: World, process: Process, call: str, fault: str
) -> None:
    agent = await world.agent(process)
    setattr(world.faults, fault, {call: 1})
    with pytest.raises(Exception, match=r"unavailable|too slow"):
        await switch_on(process, agent.id)
    await switch_on(process, agent.id)
    await require_shared(world, process, agent.id)
    assert len(await agents_of(process)) == 2


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("refused", ["blocks.link", "archival.attach"])
async def test_refused_switch_on_changes_nothing(
    world: World, process: Process, monkeypatch: pytest.MonkeyPatch, refused: str, later: bool
) -> None:
    agent = await world.agent(process)
    service, method = refused.split(".")
    monkeypatch.setattr(getattr(world, service), method, refusing(FailedPrecondition("Not now.")))
    world.faults.unavailable = {refused: int(later), "blocks.erase_agent": int(not later)}
    with pytest.raises(Unavailable if later else FailedPrecondition):
        await switch_on(process, agent.id, name="Renamed")
    world.clock.advance(61)
    for _ in range(2):
        await process.lifecycle.finish_all()
    assert await process.stores.agents.list_unfinished() == ()
    assert [found.name for found in await agents_of(process)] == [agent.name]
    assert await process.agents.get(ME, agent.id) == agent
    monkeypatch.undo()
    # The key is free again, so that the client may correct itself.
    corrected = replace(key("r-1", "UpdateAgent"), fingerprint="g")
    await process.agents.update(ME, corrected, agent.id, {"enable_sleeptime": True})
    await require_shared(world, process, agent.id)


async def test_switch_on_requires_the_revision_that_the_client_saw(world: World, process: Process) -> None:
    agent = await world.agent(process)
    await process.agents.update(ME, None, agent.id, {"name": "Other"})
    with pytest.raises(AgentRevisionMismatch):
        await process.agents.update(ME, None, agent.id, {"enable_sleeptime": True}, if_revision=1)

    async def rename(call: str) -> None:
        if call == "blocks.link":
            world.faults.on_call = None
            await process.agents.update(ME, None, agent.id, {"name": "Third"})

    world.faults.on_call = rename
    with pytest.raises(AgentRevisionMismatch):
        await process.agents.update(ME, None, agent.id, {"enable_sleeptime": True}, if_revision=2)
    assert [(found.name, found.enable_sleeptime) for found in await agents_of(process)] == [("Third", None)]
    await process.lifecycle.finish_all()
    assert await process.stores.agents.list_unfinished() == ()


async def test_concurrent_updates_create_one_partner_and_are_all_applied(world: World, process: Process) -> None:
    agent = await world.agent(process)
    await asyncio.gather(
        switch_on(process, agent.id, "r-1", description="One"),
        switch_on(process, agent.id, "r-2", metadata='{"k": 1}'),
        process.agents.update(ME, None, agent.id, {"name": "Renamed"}),
        process.agents.update(ME, None, agent.id, {"enable_sleeptime": True}),
    )
    await require_shared(world, process, agent.id)
    found = await process.agents.get(ME, agent.id)
    assert (found.name, found.description, found.metadata) == ("Renamed", "One", '{"k": 1}')
    assert len(await agents_of(process)) == 2


async def test_agent_deleted_during_its_switch_on_takes_the_partner_with_it(world: World, process: Process) -> None:
    agent = await world.agent(process)

    async def delete(call: str) -> None:
        if call == "archival.attach":
            world.faults.on_call = None
            await process.lifecycle.delete(ME, agent.id)

    world.faults.on_call = delete
    with pytest.raises((NotFound, FailedPrecondition)):
        await switch_on(process, agent.id)
    await finish_all(process)
    await nothing_is_left(world, process)


async def test_new_partner_joins_the_group_that_a_client_created(world: World, process: Process) -> None:
    agent = await world.agent(process)
    now = world.clock.now()
    manager = ManagerConfig(ManagerType.SLEEPTIME, agent.id, frequency=2)
    own = Group(new_id("group"), ME.organization_id, now, now, description="Mine", manager=manager)
    await process.stores.groups.create(None, own)
    await switch_on(process, agent.id)
    _, _, group = await pair(process, agent.id)
    assert (group.id, group.description, group.manager) == (own.id, "Mine", manager)
    await require_shared(world, process, agent.id)


async def test_agent_with_a_group_of_its_client_needs_no_further_partner(world: World, process: Process) -> None:
    agent, worker = await world.agent(process), await world.agent(process, AgentType.SLEEPTIME, blocks=())
    now = world.clock.now()
    manager = ManagerConfig(ManagerType.SLEEPTIME, agent.id)
    own = Group(new_id("group"), ME.organization_id, now, now, agent_ids=(worker.id,), manager=manager)
    await process.stores.groups.create(None, own)
    assert (await switch_on(process, agent.id)).enable_sleeptime
    assert len(await agents_of(process)) == 2


async def test_partner_whose_group_was_deleted_is_used_again(world: World, process: Process) -> None:
    agent, partner, group = await pair(process, (await create(process)).id)
    await process.groups.delete(ME, None, group.id)
    assert not (await process.agents.get(ME, agent.id)).enable_sleeptime
    await world.blocks.create("r-1", agent.id, Block(label="later", value="Not shared."))
    for call in ("blocks.link", "partners.begin"):
        world.faults.unavailable = {call: 1}
        with pytest.raises(Unavailable):
            await switch_on(process, agent.id, name="Renamed")
    changed = await switch_on(process, agent.id, name="Renamed")
    assert (changed.enable_sleeptime, changed.name) == (True, "Renamed")
    _, again, new = await pair(process, agent.id)
    assert (again, new.manager) == (partner, group.manager)
    await require_shared(world, process, agent.id)
    assert len(await agents_of(process)) == 2
    await process.lifecycle.delete(ME, agent.id)
    assert [found.id for found in await agents_of(process)] == []


async def test_concurrent_updates_put_an_idle_partner_into_one_group(world: World, process: Process) -> None:
    agent, partner, group = await pair(process, (await create(process)).id)
    await process.groups.delete(ME, None, group.id)
    results = await asyncio.gather(
        *(switch_on(process, agent.id, f"on-{number}") for number in range(3)), return_exceptions=True
    )
    assert {type(result) for result in results} <= {Agent, GroupChanged}
    await switch_on(process, agent.id, "again")
    assert (await pair(process, agent.id))[1] == partner
    assert len(await agents_of(process)) == 2
