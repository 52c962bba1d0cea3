"""The lock of a conversation for work that is not a run, and the renewal of leases."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh_kit.call_context import set_remaining
from mnemesh_kit.errors import Unavailable
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import ConversationBusy, LeaseLost, NothingToCompact
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import ConversationFilter
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.model.runs import Run, RunStatus
from mnemesh_orchestrator.store.tables import slot_waits

from ..support.model import Held, say
from ..support.world import ME, Process, World, kinds, lines


def held_in(process: Process, call: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Holds the next call of that name. Returns an event that is set when it is reached, and one that releases it."""
    reached, released = asyncio.Event(), asyncio.Event()

    async def hold(name: str) -> None:
        if name == call and not reached.is_set():
            reached.set()
            await released.wait()

    process.faults.on_call = hold
    return reached, released


CHANGES: dict[str, tuple[str, Callable[[Process, Agent], Awaitable[object]]]] = {
    "reset": (
        "recall.replace_context",
        lambda process, agent: process.windows.reset(
            ME, None, agent.id, agent.default_conversation_id, add_default=False
        ),
    ),
    "fork": (
        "recall.fork_context",
        lambda process, agent: process.conversations.fork(ME, None, agent.default_conversation_id, None, None),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_runs_wait_while_a_conversation_is_changed(world: World, process: Process, change: str) -> None:
    """Two replicas send while the window is being changed: both runs wait, and neither is lost."""
    other = world.process("instance-2")
    agent = await world.agent(process)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent, "First")
    method, created = CHANGES[change]
    reached, released = held_in(process, method)
    changing = asyncio.ensure_future(created(process, agent))
    await reached.wait()
    run, late = await process.start(agent, "Second"), await other.start(agent, "Third")
    assert (run.status, late.status) == (RunStatus.CREATED, RunStatus.CREATED)
    with pytest.raises(ConversationBusy):
        await other.start(agent, "No.", on_busy=OnBusy.REJECT)
    with pytest.raises(ConversationBusy):
        async with other.conversation_lock.take(
            ME.organization_id, agent.id, agent.default_conversation_id, OnBusy.REJECT
        ):
            raise AssertionError("two hold it")
    await process.recover()  # what this process holds is not something that it left behind
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CREATED
    world.model.follow(say("Two."), say("Three."))
    released.set()
    await changing
    assert kinds(await process.follow(run)) == ["assistant", "StopEvent", "UsageEvent"]
    assert kinds(await process.follow(late)) == ["assistant", "StopEvent", "UsageEvent"]
    shown = lines(world.turn(agent))
    assert shown[-4:] == ["user text: Second", "assistant text: Two.", "user text: Third", "assistant text: Three."]
    assert len(shown) == (4 if change == "reset" else 6)


async def test_holder_that_lost_its_lease_changes_nothing(world: World) -> None:
    """Its renewal stops it; if that comes late, recall refuses its epoch."""
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)
    world.model.follow(say("One."), say("Two."))
    await first.send(agent, "First")
    for notices in (True, False):
        reached, released = held_in(first, "recall.replace_context")
        reset = first.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
        changing = asyncio.ensure_future(reset)
        await reached.wait()
        run = await second.start(agent, "Go on.")
        world.clock.advance(31)
        world.model.follow(say("Further."))
        await second.recover()
        assert (await second.runs.get(ME, run.id)).status is RunStatus.COMPLETED
        before = world.window(agent)
        if notices:
            await first.lease_renewer.renew_once()
        released.set()
        with pytest.raises(LeaseLost):
            await changing
        assert world.window(agent) == before
    assert not first.lease_renewer.leases


async def test_lock_is_released_after_every_outcome(world: World, process: Process) -> None:
    agent = await world.agent(process)
    for error in (Unavailable("away"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with process.conversation_lock.take(agent.organization_id, agent.id, agent.default_conversation_id):
                raise error
    world.model.follow(say("One."))
    assert kinds(await process.send(agent, on_busy=OnBusy.REJECT)) == ["assistant", "StopEvent", "UsageEvent"]
    await process.idle()
    assert not process.lease_renewer.leases


async def in_line(world: World, number: int) -> None:
    """Waits until the queue has this many entries."""
    count = sa.select(sa.func.count()).select_from(slot_waits)
    while await world.database.read(lambda conn: conn.execute(count).scalar_one()) != number:
        await asyncio.sleep(0)


def reset(process: Process, agent: Agent, **options: Any) -> asyncio.Task[Agent]:
    here = agent.default_conversation_id
    return asyncio.create_task(process.windows.reset(ME, None, agent.id, here, add_default=False, **options))


async def held_up(world: World, process: Process) -> tuple[Agent, Run, Held]:
    """An agent in the middle of its first turn."""
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    run = await process.start(agent, "First")
    await held.asked.wait()
    return agent, run, held


async def test_lock_requests_and_runs_are_served_in_order(world: World) -> None:
    """On two replicas: a run, a reset, a run, a fork, a compaction that finds nothing to do, a run."""
    first, second = world.process(), world.process("instance-2")
    agent, run, held = await held_up(world, first)
    resetting = reset(second, agent)
    await in_line(world, 1)
    two = await first.start(agent, "Second")
    here = agent.default_conversation_id
    forking = asyncio.create_task(first.conversations.fork(ME, None, here, None, None))
    await in_line(world, 2)
    compacting = asyncio.create_task(first.compactions.compact(ME, None, agent.id, here, None, dry_run=False))
    await in_line(world, 3)
    three = await second.start(agent, "Third")
    with pytest.raises(ConversationBusy) as refused:
        await reset(first, agent, on_busy=OnBusy.REJECT)
    assert refused.value.metadata["run_id"] == run.id
    assert {(await first.runs.get(ME, late.id)).status for late in (two, three)} == {RunStatus.CREATED}

    world.model.follow(say("Two."), say("Three."))
    held.released.set()
    await resetting
    fork = await forking
    with pytest.raises(NothingToCompact):
        await compacting
    for late in (two, three):
        assert kinds(await first.follow(late))[-2:] == ["StopEvent", "UsageEvent"]
    assert lines(world.turn(agent)) == [
        "user text: Second", "assistant text: Two.", "user text: Third", "assistant text: Three."
    ]  # fmt: skip
    assert lines(world.recall.window(fork.id).messages[1:]) == ["user text: Second", "assistant text: Two."]
    await in_line(world, 0)


async def test_expired_lock_request_does_not_block_others(world: World, process: Process) -> None:
    agent, run, held = await held_up(world, process)
    before = world.window(agent)
    set_remaining(0.3)
    here = agent.default_conversation_id
    wanted = [
        reset(process, agent),
        asyncio.create_task(process.windows.recompile(ME, None, agent.id, here, dry_run=False)),
        asyncio.create_task(process.compactions.compact(ME, None, agent.id, here, None, dry_run=False)),
        asyncio.create_task(process.conversations.fork(ME, None, here, None, None)),
    ]
    set_remaining(None)
    late = await process.start(agent, "Second")
    for refused in await asyncio.gather(*wanted, return_exceptions=True):
        assert isinstance(refused, ConversationBusy)
        assert refused.metadata["run_id"] == run.id
    await in_line(world, 0)
    assert world.window(agent) == before
    assert len(world.recall.windows) == 1
    threads = await process.conversations.list(
        ME, ConversationFilter(agent_id=agent.id), "created_at", PageQuery(9, ascending=True)
    )
    assert len(threads.items) == 1
    world.model.follow(say("Two."))
    held.released.set()
    await process.follow(late)
    assert lines(world.turn(agent))[-2:] == ["user text: Second", "assistant text: Two."]


async def test_cancelled_lock_request_leaves_the_queue(world: World, process: Process) -> None:
    agent, _, held = await held_up(world, process)
    waiting = reset(process, agent)
    await in_line(world, 1)
    late = await process.start(agent, "Second")
    waiting.cancel()
    await asyncio.wait([waiting])
    await in_line(world, 0)
    world.model.follow(say("Two."))
    held.released.set()
    await process.follow(late)
    assert len(lines(world.turn(agent))) == 4


async def test_queue_entry_of_a_crashed_process_does_not_block_runs(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent, _, held = await held_up(world, first)
    here = agent.default_conversation_id
    for process in (first, second):
        assert (
            await process.stores.leases.acquire(
                ME.organization_id, agent.id, here, new_id("run"), process.lease_renewer.instance_id, waits=True
            )
            is None
        )
    late = await first.start(agent, "Second")
    held.released.set()
    await first.idle()
    await first.recover()
    assert (await first.runs.get(ME, late.id)).status is RunStatus.CREATED
    await first.lease_renewer.leave_queues()  # as the next process of that instance does
    await in_line(world, 1)
    await first.recover()
    assert (await first.runs.get(ME, late.id)).status is RunStatus.CREATED, "another replica's place holds"
    world.model.follow(say("Two."))
    world.clock.advance(31)
    await first.recover()
    assert (await first.runs.get(ME, late.id)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("ends", ["in order", "stalled"])
async def test_lock_request_waits_for_a_resumed_run(world: World, ends: str) -> None:
    """The replica that executed the run has crashed: another replica completes the run first."""
    first, second = world.process(), world.process("instance-2")
    agent, run, _ = await held_up(world, first)
    forking = asyncio.create_task(second.conversations.fork(ME, None, agent.default_conversation_id, None, None))
    await in_line(world, 1)
    if ends == "in order":
        await first.worker.stop()
    else:
        world.clock.advance(29)
        place = second.stores.leases.acquire(
            ME.organization_id, agent.id, agent.default_conversation_id, new_id("run"), "instance-3", waits=True
        )
        assert await place is None, "the lease holds yet"
        world.clock.advance(2)
    world.model.follow(say("One again."))
    await second.recover()
    assert (await second.runs.get(ME, run.id)).status is RunStatus.COMPLETED
    fork = await forking
    shown = ["user text: First", "assistant text: One again."]
    assert lines(world.recall.window(fork.id).messages[1:]) == shown


async def test_lock_request_proceeds_when_the_one_before_is_withdrawn(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)
    world.model.follow(say("One."))
    await first.send(agent, "First")
    reached, released = held_in(first, "recall.replace_context")
    stalled = reset(first, agent)
    await reached.wait()
    forking = asyncio.create_task(second.conversations.fork(ME, None, agent.default_conversation_id, None, None))
    await in_line(world, 1)
    world.clock.advance(31)
    fork = await forking
    assert lines(world.recall.window(fork.id).messages[1:]) == ["user text: First", "assistant text: One."]
    released.set()
    await asyncio.wait([stalled])


async def test_holder_that_cannot_renew_stops_before_its_lease_expires(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)
    held = Held(say("From the first."))
    world.model.follow(held, say("From the second."))
    await first.start(agent)
    await held.asked.wait()
    first.faults.unavailable = {"leases.renew": 2}
    for seconds in (10, 13.9):
        world.clock.advance(seconds)
        assert not await first.lease_renewer.renew_once()
        assert first.lease_renewer.leases, "it still holds for sure"
    first.faults.unavailable = {"leases.renew": 1}
    world.clock.advance(0.2)
    assert not await first.lease_renewer.renew_once()
    await first.idle()
    await second.recover()
    assert lines(world.turn(agent)) == [], "it stopped, and its lease has not lapsed yet"
    world.clock.advance(6)
    await second.recover()
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: From the second."]


async def test_holder_of_a_lost_lease_stops_at_the_next_renewal(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)
    held = Held(say("Too late."))
    world.model.follow(held, say("From the second."))
    await first.start(agent)
    await held.asked.wait()
    world.clock.advance(31)
    await second.recover()
    await first.lease_renewer.renew_once()
    await first.idle()
    assert not held.released.is_set()
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: From the second."]
