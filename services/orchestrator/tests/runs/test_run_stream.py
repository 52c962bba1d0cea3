"""Following a run: replayed, then live events, each once and in order, whenever the follower subscribes."""

import asyncio
from contextlib import aclosing

import pytest
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.events import Keepalive, MessageEvent, RunAccepted, RunEvent, StepStarted
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import RunRequest
from mnemesh_orchestrator.runs.run_stream import EventBroker
from mnemesh_types.messages import TextPart

from ..support.model import Held, call, say
from ..support.world import ME, Process, World, each, kinds, told


def an_event(run_id: str, number: int | None) -> RunEvent:
    now = FrozenClock().now()
    body = StepStarted(1, 1) if number is None else MessageEvent("assistant", new_id("message"), "otid", now)
    return RunEvent(run_id, now, body, number)


async def test_broker_delivers_events_to_followers_and_then_the_end() -> None:
    hub = EventBroker()
    first, second, other = hub.subscribe("run-1"), hub.subscribe("run-1"), hub.subscribe("run-2")
    events = [an_event("run-1", 1), an_event("run-1", 2)]
    hub.publish(events[:1])
    second.close()
    hub.publish(events[1:])
    hub.end("run-1")
    assert [await first.next(1) for _ in range(3)] == [*events, None]
    assert await second.next(1) == events[0]
    for silent in (second, other):
        with pytest.raises(TimeoutError):
            await silent.next(0)
    hub.publish(events)
    with pytest.raises(TimeoutError):
        await first.next(0)


async def test_late_follower_receives_every_event_once(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Kept."))
    world.model.follow(call("archival_memory_insert", content="tea"), held)
    run = await process.start(agent)
    await held.asked.wait()
    late = [asyncio.ensure_future(process.follow(run, after)) for after in (0, 1, 2)]
    await asyncio.sleep(0)
    held.released.set()
    whole, *behind = [[event for event in await task if event.sequence] for task in late]
    assert kinds(whole) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert behind == [whole[1:], whole[2:]]


async def test_ended_run_is_replayed_and_the_stream_ends(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    live = await process.send(agent)
    run = await process.outcome(agent)
    replayed = await process.follow(run)
    assert told(replayed) == told(live)
    assert isinstance(replayed[0].body, RunAccepted)
    assert replayed[0].body.last_sequence == run.last_sequence == 4
    for after in (4, 99):
        (accepted,) = await process.follow(run, after)
        assert isinstance(accepted.body, RunAccepted)


async def test_keepalives_are_sent_without_events(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("At last."))
    world.model.follow(held)
    run = await process.start(agent)
    follower = process.runs.streamer
    stream = each(follower.follow(run, follower.subscribe(run.id), keepalive_seconds=0))
    async with aclosing(stream):
        received = []
        async for event in stream:
            received.append(event)
            if isinstance(event.body, Keepalive):
                assert event.sequence is None
                break
        held.released.set()
        received += [event async for event in stream]
    assert kinds(received) == ["assistant", "StopEvent", "UsageEvent"]


async def test_follower_of_a_committed_step_receives_what_was_published_before_and_is_stored_later(
    world: World, process: Process
) -> None:
    agent = await world.agent(process)
    committed, ends = asyncio.Event(), asyncio.Event()

    async def hold(name: str) -> None:
        if name == "runs.finish":
            committed.set()
            await ends.wait()

    process.faults.on_call = hold
    world.model.follow(say("Hello."))
    run = await process.start(agent)
    await committed.wait()
    follower = process.runs.streamer
    stream = each(follower.follow(run, follower.subscribe(run.id), keepalive_seconds=0))
    received = []
    async with aclosing(stream):
        async for event in stream:
            received.append(event)
            if isinstance(event.body, Keepalive):  # it has read the store
                ends.set()
    assert kinds(received) == ["assistant", "StopEvent", "UsageEvent"]


async def test_follower_receives_a_result_that_is_stored_with_a_later_write(world: World, process: Process) -> None:
    """The result was published before the follower came, and the write after the answer stores it."""
    agent = await world.agent(process)
    committed, ends = asyncio.Event(), asyncio.Event()

    async def hold(name: str) -> None:
        if name == "runs.finish":
            committed.set()
            await ends.wait()

    process.faults.on_call = hold
    answer = Held(say("Kept."))
    world.model.follow(call("archival_memory_insert", content="tea"), answer)
    sending = asyncio.ensure_future(process.send(agent))
    await answer.asked.wait()
    run, follower = await process.outcome(agent), process.runs.streamer
    stream = each(follower.follow(run, follower.subscribe(run.id), keepalive_seconds=0))
    received = []
    async with aclosing(stream):
        async for event in stream:
            received.append(event)
            if isinstance(event.body, Keepalive):  # it has read the store
                (ends if committed.is_set() else answer.released).set()
    assert [event.sequence for event in received if event.sequence] == [1, 2, 3, 4, 5, 6]
    await sending


async def test_losing_a_stream_does_not_lose_the_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Said without followers."))
    world.model.follow(held)
    message = InputMessage((TextPart("Hello"),))
    stream = process.runs.send(ME, None, RunRequest(agent.id, "", [message], RunConfig()))
    async with aclosing(stream):
        async for _ in stream:
            break
    await held.asked.wait()
    assert process.event_broker._followers == {}
    held.released.set()
    run = await process.outcome(agent)
    assert kinds(await process.follow(run)) == ["assistant", "StopEvent", "UsageEvent"]


async def test_repeated_message_joins_its_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Once."))
    world.model.follow(held)
    first = asyncio.ensure_future(process.send(agent, otid="o-1"))
    await held.asked.wait()
    second = asyncio.ensure_future(process.send(agent, otid="o-1"))
    await asyncio.sleep(0)
    held.released.set()
    events, again = await first, await second
    assert isinstance(again[0].body, RunAccepted)
    assert (again[0].body.replayed, again[0].run_id) == (True, events[0].run_id)
    assert told(again) == told(events)
    after = await process.send(agent, otid="o-1")
    assert told(after) == told(events)
    assert len(world.model.requests) == 1
    assert len(world.turn(agent)) == 2


async def test_run_of_another_organization_is_not_found(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    await process.send(agent)
    run = await process.outcome(agent)
    stranger = Principal(new_id("org"), new_id("user"))
    with pytest.raises(NotFound):
        async for _ in process.runs.follow(stranger, run.id, 0, 30):
            pass
    assert process.event_broker._followers == {}


async def test_follower_receives_live_events_that_are_not_stored_yet(world: World, process: Process) -> None:
    """They were published before the follower came, and the next one may come much later."""
    agent = await world.agent(process)
    held = Held(say("At last."))
    world.model.follow(held)
    run = await process.start(agent, stream_tokens=True)
    await held.asked.wait()
    follower = process.runs.streamer
    stream = each(follower.follow(run, follower.subscribe(run.id), deltas=True, keepalive_seconds=0))
    received = []
    async with aclosing(stream):
        async for event in stream:
            received.append(event.body)
            if isinstance(event.body, Keepalive):
                held.released.set()
                break
    assert [type(body) for body in received] == [RunAccepted, MessageEvent, StepStarted, Keepalive]
