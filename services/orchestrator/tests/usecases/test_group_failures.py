"""Changes of groups take effect completely or not at all, whatever fails meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from mnemesh_kit.errors import Aborted, AlreadyExists, Internal, MnemeshError, Unavailable
from mnemesh_orchestrator.errors import GroupRevisionMismatch
from mnemesh_orchestrator.model.groups import Group, GroupFilter, ManagerConfig, ManagerType
from mnemesh_testkit.plugin import Sample
from mnemesh_types.blocks import Block

from ..support.faults import Crash, Faults
from ..support.group_cast import Cast, key, new_cast, no_group_is_left
from ..support.world import ME, Process, World, opened

Act = Callable[[Process, Cast, Group | None, str], Awaitable[object]]


async def creates(process: Process, cast: Cast, group: Group | None, request_id: str) -> object:
    draft = cast.group(0, 1, shared_block_ids=(cast.plan, cast.notes))
    return await process.groups.create(ME, key("CreateGroup", request_id), draft)


async def updates(process: Process, cast: Cast, group: Group | None, request_id: str) -> object:
    assert group is not None
    changes = {"agent_ids": (cast.agents[2].id, cast.agents[1].id), "shared_block_ids": (cast.notes,)}
    return await process.groups.update(ME, key("UpdateGroup", request_id), group.id, changes)


async def deletes(process: Process, cast: Cast, group: Group | None, request_id: str) -> object:
    assert group is not None
    return await process.groups.delete(ME, key("DeleteGroup", request_id), group.id)


async def is_refused(process: Process, cast: Cast, group: Group | None, request_id: str) -> object:
    assert group is not None
    changes = {"agent_ids": (cast.agents[2].id, cast.own_plan.id), "shared_block_ids": (cast.notes, cast.plan)}
    with pytest.raises(AlreadyExists):
        await process.groups.update(ME, key("UpdateGroup", request_id), group.id, changes)
    return None


OUTCOMES: dict[str, tuple[Act, bool, tuple[str, str]]] = {
    "create": (creates, False, ("01", "01")),
    "update": (updates, True, ("", "12")),
    "delete": (deletes, True, ("", "")),
    "refused": (is_refused, True, ("01", "")),
}
"""By case: the change, whether there is a group before it, and the holders of both blocks afterwards."""


async def first(process: Process, cast: Cast) -> Group:
    return await process.groups.create(ME, None, cast.group(0, 1, shared_block_ids=(cast.plan,)))


@pytest.mark.parametrize("case", OUTCOMES)
async def test_change_survives_a_crash_at_any_point(tmp_path: Path, case: str, sample: Sample) -> None:
    act, exists, expected = OUTCOMES[case]
    async with opened(tmp_path) as world:
        cast = await new_cast(world, world.process())
        counting = world.process()
        group = await first(counting, cast) if exists else None
        before = world.faults.points
        await act(counting, cast, group, "whole")
        points = world.faults.points - before
        assert (cast.holders(cast.plan), cast.holders(cast.notes)) == expected
        for point in sample(range(points), 12, 2):
            await _clear(world)
            group = await first(world.process(), cast) if exists else None
            world.faults = Faults()
            world.faults.crashes_at = point
            dying = world.process()
            with suppress(Crash):  # a call that fails has no point after it
                await act(dying, cast, group, f"r-{point}")
            world.faults, where = Faults(), f"point {point}, {world.faults.calls[-2:]}"
            process = world.process()
            world.clock.advance(61)
            await process.group_changes.finish_all()
            assert await process.stores.groups.list_unfinished() == (), where
            await act(process, cast, group, f"r-{point}")
            assert (cast.holders(cast.plan), cast.holders(cast.notes)) == expected, where
            assert await process.groups.count(ME, GroupFilter()) == (0 if case == "delete" else 1), where


async def _clear(world: World) -> None:
    world.faults = Faults()
    process = world.process()
    groups = process.stores.groups
    for ids in (await groups.of_agents(ME.organization_id, list(world.blocks.held))).values():
        for group_id in ids:
            await process.groups.delete(ME, None, group_id)
    await no_group_is_left(process)


@pytest.mark.parametrize("call", ["blocks.get", "blocks.attach", "groups.finish"])
@pytest.mark.parametrize("fault", ["unavailable", "lost"])
async def test_creation_during_an_outage_continues_with_its_repeat(
    world: World, process: Process, call: str, fault: str
) -> None:
    cast = await new_cast(world, process)
    setattr(world.faults, fault, {call: 1})
    with pytest.raises(MnemeshError):
        await creates(process, cast, None, "r-1")
    assert await process.groups.count(ME, GroupFilter()) == (call == "groups.finish" and fault == "lost")
    await creates(process, cast, None, "r-1")
    assert await process.groups.count(ME, GroupFilter()) == 1
    assert (cast.holders(cast.plan), cast.holders(cast.notes)) == ("01", "01")


async def test_interrupted_update_shows_the_group_as_before_and_is_finished_by_the_next_change(
    world: World, process: Process
) -> None:
    cast = await new_cast(world, process)
    group = await first(process, cast)
    world.faults.unavailable = {"blocks.attach": 1}
    with pytest.raises(Unavailable):
        await updates(process, cast, group, "r-1")
    assert await process.groups.get(ME, group.id) == group
    await process.group_changes.finish_all()
    assert await process.groups.get(ME, group.id) == group, "another process may still be at work"
    changed = await process.groups.update(ME, None, group.id, {"description": "Two"})
    assert (changed.description, changed.agent_ids) == ("Two", (cast.agents[2].id, cast.agents[1].id))
    assert (cast.holders(cast.plan), cast.holders(cast.notes)) == ("", "12")


async def test_interrupted_update_does_not_prevent_the_deletion(world: World, process: Process) -> None:
    cast = await new_cast(world, process)
    group = await first(process, cast)
    world.faults.lost = {"blocks.attach": 1}
    with pytest.raises(MnemeshError):
        await updates(process, cast, group, "r-1")
    await process.groups.delete(ME, None, group.id)
    assert (cast.holders(cast.plan), cast.holders(cast.notes)) == ("", "")
    await no_group_is_left(process)


async def test_undo_during_an_outage_is_finished_later(world: World, process: Process) -> None:
    cast = await new_cast(world, process)
    group = await first(process, cast)
    world.faults.unavailable = {"blocks.detach_block": 99}
    changes = {"agent_ids": (cast.agents[2].id, cast.agents[0].id, cast.agents[1].id, cast.own_plan.id)}
    with pytest.raises(AlreadyExists):
        await process.groups.update(ME, None, group.id, changes)
    assert cast.holders(cast.plan) == "012"
    world.faults.unavailable = {}
    await process.group_changes.finish_all()
    assert (cast.holders(cast.plan), await process.groups.get(ME, group.id)) == ("01", group)


async def test_creation_that_a_service_cannot_finish_is_undone(world: World, process: Process) -> None:
    cast = await new_cast(world, process)

    async def break_(name: str) -> None:
        if name == "blocks.attach":
            raise Internal("Broken.")

    world.faults.on_call = break_
    with pytest.raises(Internal):
        await creates(process, cast, None, "r-1")
    world.clock.advance(61)
    await process.group_changes.finish_all()
    assert len(await process.stores.groups.list_unfinished()) == 1
    world.clock.advance(900)
    await process.group_changes.finish_all()
    await no_group_is_left(process)


async def test_failed_link_leaves_nothing(world: World, process: Process) -> None:
    cast = await new_cast(world, process)
    manager = ManagerConfig(ManagerType.SLEEPTIME, cast.agents[3].id)
    partner = await world.agent(process, blocks=())
    # Every agent of the cast has a block `human` of its own, so it cannot hold the manager's.
    draft = replace(cast.group(0, manager=manager), agent_ids=(partner.id, cast.agents[0].id))
    with pytest.raises(AlreadyExists) as raised:
        await process.groups.create(ME, None, draft)
    assert raised.value.field == "group.agent_ids"
    await no_group_is_left(process)
    assert partner.id not in world.blocks.held
    group = await process.groups.create(ME, None, replace(draft, agent_ids=(partner.id,)))
    with pytest.raises(AlreadyExists):
        await process.groups.update(ME, None, group.id, {"agent_ids": (partner.id, cast.agents[0].id)})
    other = await world.agent(process, blocks=())
    (own,) = world.blocks.held[cast.own_plan.id]
    world.blocks.give(partner.id, own)
    # The link attaches the manager's blocks to the new member, and the shared block is refused.
    changes = {"agent_ids": (partner.id, other.id), "shared_block_ids": (cast.plan,)}
    with pytest.raises(AlreadyExists):
        await process.groups.update(ME, None, group.id, changes)
    assert other.id not in world.blocks.held
    assert (await process.groups.get(ME, group.id)).agent_ids == (partner.id,)
    assert set(world.blocks.held[partner.id]) == set(world.blocks.held[cast.agents[3].id])


async def test_sleeptime_group_survives_a_crash_at_any_point(tmp_path: Path, sample: Sample) -> None:
    async with opened(tmp_path) as world:
        first_process = world.process()
        manager = await world.agent(first_process)
        partners = [await world.agent(first_process, blocks=()) for _ in range(2)]
        config = ManagerConfig(ManagerType.SLEEPTIME, manager.id)
        now = manager.created_at
        draft = Group("", "", now, now, agent_ids=(partners[0].id,), manager=config)
        (block,) = world.blocks.held[manager.id]

        async def lives(process: Process, name: str) -> None:
            group = await process.groups.create(ME, key("CreateGroup", name), draft)
            await process.groups.update(ME, key("UpdateGroup", name), group.id, {"agent_ids": (partners[1].id,)})
            await process.groups.delete(ME, key("DeleteGroup", name), group.id)

        world.faults = Faults()
        await lives(world.process(), "whole")
        points = world.faults.points
        for point in sample(range(points), 12, 2):
            world.faults = Faults()
            for partner in partners:
                await world.blocks.detach_block("", partner.id, block)
            world.faults.crashes_at = point
            with pytest.raises(Crash):
                await lives(world.process(), f"r-{point}")
            world.faults = Faults()
            process = world.process()
            world.clock.advance(61)
            await process.group_changes.finish_all()
            assert await process.stores.groups.list_unfinished() == (), point
            for group in await process.stores.groups.of_manager(ME.organization_id, manager.id):
                assert all(block in world.blocks.held.get(agent_id, ()) for agent_id in group.agent_ids), point
                assert (await process.agents.get(ME, manager.id)).enable_sleeptime, point
                await process.groups.delete(ME, None, group.id)
            assert not (await process.agents.get(ME, manager.id)).enable_sleeptime, point
            # The link has ended: what the manager gets, it alone gets.
            other = await world.agent(process, blocks=(Block(label="later", value="Alone."),))
            (later,) = world.blocks.held[other.id]
            world.blocks.give(manager.id, later)
            assert all(later not in world.blocks.held.get(partner.id, ()) for partner in partners), point
            await world.blocks.detach_block("", manager.id, later)


async def test_updates_of_one_revision_by_two_processes_change_it_once(world: World) -> None:
    processes = [world.process("instance-1"), world.process("instance-2")]
    cast = await new_cast(world, processes[0])
    group = await first(processes[0], cast)

    async def share(number: int, block_id: str) -> Group:
        changes = {"shared_block_ids": (block_id,)}
        return await processes[number].groups.update(ME, None, group.id, changes, if_revision=1)

    results = await asyncio.gather(share(0, cast.plan), share(1, cast.notes), return_exceptions=True)
    refused = [result for result in results if isinstance(result, GroupRevisionMismatch)]
    assert [error.metadata["revision"] for error in refused] == ["2"]
    assert await processes[1].groups.get(ME, group.id) in results


async def test_concurrent_changes_of_two_processes_leave_the_blocks_of_the_last(world: World) -> None:
    processes = [world.process("instance-1"), world.process("instance-2")]
    cast = await new_cast(world, processes[0])
    group = await first(processes[0], cast)
    ids = [agent.id for agent in cast.agents]

    async def change(number: int) -> None:
        changes = {
            "agent_ids": (ids[number % 4], ids[(number + 1) % 4]),
            "shared_block_ids": ((cast.plan,), (cast.notes,), (cast.notes, cast.plan))[number % 3],
        }
        with suppress(Aborted):  # the other process was faster five times
            await processes[number % 2].groups.update(ME, None, group.id, changes)

    await asyncio.gather(*(change(number) for number in range(12)))
    last = await processes[0].groups.get(ME, group.id)
    members = "".join(sorted(str(ids.index(agent_id)) for agent_id in last.agent_ids))
    for block in (cast.plan, cast.notes):
        assert cast.holders(block) == (members if block in last.shared_block_ids else "")
    assert await processes[0].stores.groups.list_unfinished() == ()
