"""Cancellations: of the run of a group with the turn that runs, of a queued run, and of one turn alone."""

import asyncio

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.events import MemberTurnEnded
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunFilter, RunStatus, StopReason

from ..support.groups import Cast, bodies, start
from ..support.model import Held, say
from ..support.world import ME, Process, World, require_valid

ALL = PageQuery(50, ascending=True)


async def turns_of(process: Process, run: Run) -> list[Run]:
    return list((await process.runs.list(ME, RunFilter(parent_run_id=run.id), ALL)).items)


@pytest.mark.parametrize("target", ["run", "group"])
async def test_run_is_cancelled_with_the_turn_that_runs(cast: Cast, process: Process, target: str) -> None:
    held = Held(say("Never said."))
    cast.says("Bob", held)
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    run = await start(process, group)
    queued = await start(process, group, "Later")
    await held.asked.wait()
    filter_, ids = (RunFilter(), (queued.id, run.id)) if target == "run" else (RunFilter(group_id=group.id), ())
    outcomes = await process.approvals.cancel(ME, filter_, ids)
    assert set(outcomes.values()) == {CancelOutcome.CANCELLED}
    events = await process.follow(run)
    assert cast.shown(events)[3:] == ["Bob MemberTurnStarted 2", "Bob MemberTurnEnded 2", "StopEvent", "UsageEvent"]
    assert bodies(events, MemberTurnEnded)[1].stop_reason is StopReason.CANCELLED
    assert [turn.status for turn in await turns_of(process, run)] == [RunStatus.COMPLETED, RunStatus.CANCELLED]
    assert cast.turn("Bob") == ["user: Hello", "system: Ada: Ada speaks."]
    require_valid(cast.world.window(cast.agents["Bob"]).messages)
    assert await turns_of(process, queued) == []
    ended = await process.runs.get(ME, queued.id)
    assert (ended.status, ended.input_unrecorded) == (RunStatus.CANCELLED, False)


async def test_cancelled_turn_ends_and_the_round_goes_on(cast: Cast, process: Process) -> None:
    held = Held(say("Never said."))
    cast.says("Bob", held)
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    run = await start(process, group)
    await held.asked.wait()
    await process.approvals.cancel(ME, RunFilter(agent_ids=(cast.agents["Bob"].id,)), ())
    events = await process.follow(run)
    ends = [end.stop_reason for end in bodies(events, MemberTurnEnded)]
    assert ends == [StopReason.END_TURN, StopReason.CANCELLED, StopReason.END_TURN]
    assert (await process.runs.get(ME, run.id)).status is RunStatus.COMPLETED
    assert cast.turn("Cleo") == ["user: Hello", "system: Ada: Ada speaks.", "assistant: Cleo speaks."]


async def test_cancelled_turn_of_the_manager_cancels_the_run(cast: Cast, process: Process) -> None:
    held = Held(say("Never said."))
    cast.says("Ada", held)
    group = await cast.group(process, "Bob", "Cleo", kind=ManagerType.DYNAMIC, by="Ada")
    run = await start(process, group)
    await held.asked.wait()
    await process.approvals.cancel(ME, RunFilter(agent_ids=(cast.agents["Ada"].id,)), ())
    await process.follow(run)
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CANCELLED


async def test_turn_that_waits_for_its_agent_is_cancelled(cast: Cast, process: Process) -> None:
    held = Held(say("To somebody else."))
    cast.says("Ada", held)
    other = await process.start(cast.agents["Ada"], "A long question")
    await held.asked.wait()
    group = await cast.group(process, "Ada", "Bob")
    run = await start(process, group)
    while not (turns := await turns_of(process, run)):
        await asyncio.sleep(0)
    assert await process.approvals.cancel(ME, RunFilter(), (run.id,)) == {run.id: CancelOutcome.CANCELLED}
    assert (await process.runs.get(ME, turns[0].id)).status is RunStatus.CANCELLED
    held.released.set()
    await process.follow(other)
    assert cast.turn("Ada") == ["user: A long question", "assistant: To somebody else."]


async def test_run_of_another_replica_is_cancelled(cast: Cast, world: World, process: Process) -> None:
    """One replica executes the group run, another the turn of its member, and a third cancels both."""
    second, third = world.process("instance-2"), world.process("instance-3")
    busy, held = Held(say("To somebody else.")), Held(say("Never said."))
    cast.says("Ada", busy, held)
    await second.start(cast.agents["Ada"], "A long question")
    await busy.asked.wait()
    group = await cast.group(process, "Ada", "Bob")
    run = await start(process, group)
    while not (turns := await turns_of(process, run)):
        await asyncio.sleep(0)
    busy.released.set()
    await held.asked.wait()
    assert second.worker.holds(turns[0].id)
    cancelling = asyncio.ensure_future(third.approvals.cancel(ME, RunFilter(group_id=group.id), ()))
    while not cancelling.done():
        for replica in (process, second, third):
            await replica.replica_watcher.look_once()
        await asyncio.sleep(0)
    assert await cancelling == {run.id: CancelOutcome.CANCELLED, turns[0].id: CancelOutcome.CANCELLED}
    assert cast.shown(await process.follow(run)) == [
        "Ada MemberTurnStarted 1",
        "Ada MemberTurnEnded 1",
        "StopEvent",
        "UsageEvent",
    ]
    assert cast.turn("Ada")[-1] == "user: Hello"
    await second.worker.stop()
