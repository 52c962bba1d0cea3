"""Two orchestrators on one database: each follows, cancels and resumes the runs of the other."""

import asyncio

import pytest
from mnemesh_orchestrator.errors import ConversationBusy
from mnemesh_orchestrator.model.events import RunAccepted, RunEvent
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import CancelOutcome, RunFilter, RunRequest, RunStatus
from mnemesh_types.messages import TextPart

from ..support.faults import Faults
from ..support.model import Held, by_place, call, say
from ..support.waiting import until
from ..support.world import ME, Process, World, crashed, each, kinds, lines, require_valid, told


async def looking(process: Process, task: asyncio.Task[list[RunEvent]]) -> list[RunEvent]:
    """Returns the events that a follower receives while its process watches the store."""
    while not task.done():
        await process.replica_watcher.look_once()
        await asyncio.sleep(0)
    return await task


@pytest.fixture
def other(world: World) -> Process:
    return world.process("instance-2")


async def test_run_is_followed_from_another_replica(world: World, process: Process, other: Process) -> None:
    agent = await world.agent(process)
    held = [Held(call("archival_memory_insert", content="tea")), Held(say("Kept."))]
    world.model.follow(*held)
    run = await process.start(agent)
    await held[0].asked.wait()
    following = [asyncio.ensure_future(other.follow(run, after)) for after in (0, 1, 3)]
    await until(lambda: len(other.event_broker._followers.get(run.id, ())) == 3)
    for one in held:
        await one.asked.wait()
        await other.replica_watcher.look_once()
        one.released.set()
    whole, behind, last = [await looking(other, task) for task in following]
    assert kinds(whole) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    durable = [event for event in whole if event.sequence]
    assert [event for event in behind if event.sequence] == durable[1:]
    assert [event for event in last if event.sequence] == durable[3:]
    assert other.event_broker._followers == {}


async def test_run_sent_here_and_executed_elsewhere_is_streamed_here(
    world: World, process: Process, other: Process
) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held, say("Two."))
    await process.start(agent, "First")
    await held.asked.wait()
    sent = asyncio.ensure_future(other.send(agent, "Second"))
    await until(lambda: bool(other.event_broker._followers))
    held.released.set()
    assert kinds(await looking(other, sent)) == ["assistant", "StopEvent", "UsageEvent"]
    assert lines(world.turn(agent))[-2:] == ["user text: Second", "assistant text: Two."]


async def test_run_that_is_being_stored_is_not_treated_as_deleted(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Here."))

    async def look(name: str) -> None:
        if name == "runs.start":
            await process.replica_watcher.look_once()

    process.faults.on_call = look
    assert kinds(await process.send(agent)) == ["assistant", "StopEvent", "UsageEvent"]


async def test_stream_continues_when_another_replica_resumes_the_run(
    world: World, process: Process, other: Process
) -> None:
    """The holder stalls and continues after the takeover: it changes nothing, and its client receives the rest."""
    agent = await world.agent(process)
    held = Held(say("Never said."))
    world.model.follow(call("archival_memory_insert", content="tea"), held, say("From the other."))
    sent = asyncio.ensure_future(process.send(agent))
    await held.asked.wait()
    world.clock.advance(31)
    await other.recover()
    before = world.window(agent)
    held.released.set()
    events = await looking(process, sent)
    assert kinds(events) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    await process.idle()
    assert world.window(agent) == before
    assert lines(world.turn(agent))[-1] == "assistant text: From the other."
    assert await world.archival.texts(agent.id) == ["tea"]
    require_valid(world.window(agent).messages)


async def test_follower_receives_the_one_event_that_another_replica_stored_before_it_stalled(
    world: World, process: Process, other: Process
) -> None:
    agent = await world.agent(process)
    first, second = Held(call("archival_memory_insert", content="tea")), Held(say("Never said."))
    world.model.follow(first, second, say("Kept."))
    run = await other.start(agent)
    await first.asked.wait()
    following = asyncio.ensure_future(process.follow(run, 2))
    await until(lambda: run.id in process.event_broker.followed)
    first.released.set()
    await second.asked.wait()
    assert [event.sequence for event in await process.stores.runs.events(run.id, 2, 10)] == [3]
    world.clock.advance(31)
    await process.recover()
    assert [event.sequence for event in await following if event.sequence] == [3, 4, 5, 6]
    second.released.set()
    await other.idle()


async def test_messages_through_both_replicas_run_in_order(
    world: World, process: Process, other: Process, is_full: bool
) -> None:
    count = 50 if is_full else 16
    agent = await world.agent(process)
    held = Held(say("Done."))
    world.model.script = lambda request: held if not held.released.is_set() else say("Done.")
    accepted = [await (process, other)[number % 2].start(agent, f"Message {number}") for number in range(count)]
    await held.asked.wait()
    held.released.set()
    await until(lambda: len(world.turn(agent)) == 2 * count)
    texts = [message.text for message in world.turn(agent)[::2]]
    assert texts == [f"Message {number}" for number in range(count)]
    assert len({run.id for run in accepted}) == count


async def test_rejected_message_names_the_run_of_another_replica(
    world: World, process: Process, other: Process
) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    run = await process.start(agent)
    with pytest.raises(ConversationBusy) as raised:
        await other.send(agent, on_busy=OnBusy.REJECT)
    assert raised.value.metadata["run_id"] == run.id
    held.released.set()
    await process.follow(run)


async def test_run_is_cancelled_at_once_from_another_replica(world: World, process: Process, other: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Never said."))
    world.model.follow(held, say("Two."))
    run, waiting = await process.start(agent, "First"), await process.start(agent, "Second")
    await held.asked.wait()
    cancelling = asyncio.ensure_future(other.runs.cancel(ME, RunFilter(agent_ids=(agent.id,)), ()))
    await until(lambda: run.id in other.event_broker.followed)
    assert not held.released.is_set(), "the model is still being asked"
    while not cancelling.done():
        await process.replica_watcher.look_once()
        await other.replica_watcher.look_once()
        await asyncio.sleep(0)
    assert await cancelling == {run.id: CancelOutcome.CANCELLED, waiting.id: CancelOutcome.CANCELLED}
    assert kinds(await process.follow(run)) == ["StopEvent", "UsageEvent"]
    assert lines(world.turn(agent)) == ["user text: First"]
    again = await other.runs.cancel(ME, RunFilter(agent_ids=(agent.id,)), [run.id])
    assert again == {run.id: CancelOutcome.ENDED_BEFORE}


async def test_run_of_a_crashed_holder_is_cancelled_after_its_lease_expires(
    world: World, process: Process, other: Process
) -> None:
    agent = await world.agent(process)
    world.model.script = by_place(call("archival_memory_insert", content="tea"), say("Never said."))
    world.faults = Faults()
    first = world.process("instance-3")

    async def die(name: str) -> None:
        if name == "recall.commit_step":
            first.faults.crashes_at = first.faults.points - 1

    first.faults.on_call = die
    run = await first.start(agent)
    await crashed(first)
    cancelling = asyncio.ensure_future(other.runs.cancel(ME, RunFilter(agent_ids=(agent.id,)), ()))
    await until(lambda: run.id in other.event_broker.followed)
    await other.recover()
    assert (await other.runs.get(ME, run.id)).status is RunStatus.RUNNING
    world.clock.advance(31)
    await other.recover()
    await other.replica_watcher.look_once()
    assert await cancelling == {run.id: CancelOutcome.CANCELLED}
    assert lines(world.turn(agent))[-1] == "tool success of archival_memory_insert: "
    require_valid(world.window(agent).messages)


async def test_repeated_message_through_another_replica_returns_the_same_run(
    world: World, process: Process, other: Process
) -> None:
    agent = await world.agent(process)
    held = Held(say("Once."))
    world.model.follow(held)
    first = asyncio.ensure_future(process.send(agent, otid="o-1"))
    await held.asked.wait()
    second = asyncio.ensure_future(other.send(agent, otid="o-1"))
    await until(lambda: bool(other.event_broker._followers))
    held.released.set()
    events, again = await first, await looking(other, second)
    after = await other.send(agent, otid="o-1")
    for repeated in (again, after):
        assert isinstance(repeated[0].body, RunAccepted)
        assert (repeated[0].body.replayed, repeated[0].run_id) == (True, events[0].run_id)
        assert told(repeated) == told(events)
    assert len(world.model.requests) == 1


async def test_streams_end_when_another_replica_deletes_the_agent(
    world: World, process: Process, other: Process
) -> None:
    agent = await world.agent(process)
    held = Held(say("Never."))
    world.model.follow(held)
    message = InputMessage((TextPart("Hello"),))
    stream = each(process.runs.send(ME, None, RunRequest(agent.id, "", [message], RunConfig())))
    assert isinstance((await anext(stream)).body, RunAccepted)
    await held.asked.wait()
    await other.lifecycle.delete(ME, agent.id)
    await process.replica_watcher.look_once()
    await process.idle()
    await process.replica_watcher.look_once()
    assert kinds([event async for event in stream]) == []
    assert not process.lease_renewer.leases
