"""Deletion of groups: their runs are cancelled and kept, and nothing waits for them."""

import asyncio
from collections.abc import Sequence

import pytest
from mnemesh_kit.errors import NotFound
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.groups import Group, GroupFilter, ManagerConfig, ManagerType
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunOrigin, RunStatus, StopReason
from mnemesh_testkit.timeouts import scaled

from ..support.faults import Crash, Faults
from ..support.groups import Cast, start
from ..support.model import Held, say
from ..support.world import ME, Process, World, crashed


async def runs_of(process: Process, **conditions: object) -> Sequence[Run]:
    filter_ = RunFilter(**conditions)  # type: ignore[arg-type]
    return (await process.runs.list(ME, filter_, PageQuery(100, ascending=True))).items


async def test_deletion_cancels_running_and_waiting_runs(world: World, process: Process) -> None:
    cast, held = Cast(world), Held(say("Late."))
    await cast.join(process, "Zoe", "Ada")
    cast.says("Ada", held, "Again.")
    group = await cast.group(process, "Zoe", "Ada")
    running, waiting = await start(process, group), await start(process, group)
    await held.asked.wait()
    await process.groups.delete(ME, None, group.id)
    for run in (running, waiting):
        ended = await process.runs.get(ME, run.id)
        assert (ended.status, ended.stop_reason) == (RunStatus.CANCELLED, StopReason.CANCELLED)
    assert await runs_of(process, active=True) == ()
    with pytest.raises(NotFound):
        await start(process, group)
    # The agents answer again, and keep what they said.
    assert "Zoe speaks." in " ".join(cast.turn("Zoe"))
    await process.send(cast.agents["Ada"], "Are you free?")
    assert await process.stores.groups.list_unfinished() == ()


async def test_deletion_cancels_the_run_of_a_process_that_died(world: World) -> None:
    dying, cast, held = world.process(), Cast(world), Held(say("Late."))
    await cast.join(dying, "Zoe", "Ada")
    cast.says("Zoe", held, "Again.")
    group = await cast.group(dying, "Zoe", "Ada")
    run = await start(dying, group)
    await held.asked.wait()
    world.faults.crashes_at = world.faults.points
    held.released.set()
    await crashed(dying)
    world.faults = Faults()
    world.clock.advance(60)
    process = world.process("instance-2")
    await process.groups.delete(ME, None, group.id)
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CANCELLED
    assert await runs_of(process, active=True) == ()
    await process.worker.stop()


@pytest.mark.parametrize("call", ["runs.cancel_waiting", "groups.finish"])
async def test_deletion_survives_a_crash(world: World, call: str) -> None:
    first, cast, held = world.process(), Cast(world), Held(say("Late."))
    await cast.join(first, "Zoe")
    cast.says("Zoe", held, "Again.")
    group = await cast.group(first, "Zoe")
    await start(first, group)
    waiting = await start(first, group)
    await held.asked.wait()

    async def crash(name: str) -> None:
        if name == call:
            world.faults.has_crashed = True
            raise Crash

    faults = world.faults
    faults.on_effect = crash
    with pytest.raises(Crash):
        await first.groups.delete(ME, None, group.id)
    held.released.set()
    await crashed(first)
    world.faults = Faults()
    world.clock.advance(60)
    process = world.process("instance-2")
    with pytest.raises(NotFound):
        await process.groups.get(ME, group.id)
    await process.group_changes.finish_all()
    assert await process.stores.groups.list_unfinished() == ()
    assert (await process.runs.get(ME, waiting.id)).status is RunStatus.CANCELLED
    assert await runs_of(process, active=True) == ()
    await process.worker.stop()


async def test_deletion_of_a_group_and_of_its_agents_at_once(world: World, process: Process) -> None:
    cast, held = Cast(world), Held(say("Late."))
    await cast.join(process, "Zoe", "Ada")
    cast.says("Zoe", held, "Again.")
    group = await cast.group(process, "Zoe", "Ada")
    await start(process, group)
    await held.asked.wait()
    async with asyncio.timeout(scaled(60)):
        await asyncio.gather(
            process.groups.delete(ME, None, group.id),
            *(process.lifecycle.delete(ME, agent.id) for agent in cast.agents.values()),
        )
    with pytest.raises(NotFound):
        await process.groups.get(ME, group.id)
    assert await process.stores.groups.list_unfinished() == ()
    assert await runs_of(process, active=True) == ()


async def test_deletion_cancels_sleeptime_runs_that_wait(world: World, process: Process) -> None:
    world.model.script = lambda request: say("Hello.")
    manager, partner = [await world.agent(process, blocks=()) for _ in range(2)]
    now = manager.created_at
    config = ManagerConfig(ManagerType.SLEEPTIME, manager.id)
    group = await process.groups.create(ME, None, Group("", "", now, now, agent_ids=(partner.id,), manager=config))
    held = Held(say("Busy."))
    world.model.script = lambda request: held
    await process.start(partner)
    await held.asked.wait()
    world.model.script = lambda request: say("Hello.")
    await process.send(manager, "Remember.")
    (queued,) = await runs_of(process, origins=(RunOrigin.SLEEPTIME,))
    assert queued.status is RunStatus.CREATED
    await process.groups.delete(ME, None, group.id)
    assert (await process.runs.get(ME, queued.id)).status is RunStatus.CANCELLED
    held.released.set()
    await process.idle()
    assert await runs_of(process, active=True) == ()
    assert await process.groups.count(ME, GroupFilter()) == 0
    await send_plainly(process, manager.id)


async def send_plainly(process: Process, agent_id: str) -> None:
    """A former manager answers, and starts nothing."""
    before = len(await runs_of(process))
    agent = await process.agents.get(ME, agent_id)
    await process.send(agent, "Still there?")
    assert len(await runs_of(process)) == before + 1
