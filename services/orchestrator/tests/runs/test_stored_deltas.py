"""Background runs with token streaming: live events are replayed as they were, whenever a follower subscribes."""

import asyncio

from mnemesh_orchestrator.model.events import Delta, Keepalive, RunEvent, StepStarted

from ..support.model import Cut, Held, call, say, together
from ..support.waiting import until
from ..support.world import Process, World, crashed, deltas, kinds

LONG = "It is a long answer, which comes in many pieces, one after the other."


def told(events: list[RunEvent]) -> list[object]:
    """Returns the live and durable events in order, without the first event and keepalives."""
    return [event.body for event in events[1:] if not isinstance(event.body, Keepalive)]


async def test_replay_equals_the_live_stream(world: World, process: Process) -> None:
    """A turn with two steps. The second is requested again because its answer was interrupted."""
    agent = await world.agent(process)
    first = Held(together(call("archival_memory_insert", content="tea"), text="I keep this in mind for long."))
    world.model.follow(first, Cut(say(LONG)), say(LONG, thought="Now what do I say to this?"))
    run = await process.start(agent, stream_tokens=True)
    await first.asked.wait()
    following = asyncio.ensure_future(process.follow(run, deltas=True))
    await until(lambda: run.id in process.event_broker.followed)
    first.released.set()
    live = told(await following)
    await process.idle()
    replayed = await process.follow(run, deltas=True)
    assert told(replayed) == live
    started = [(body.number, body.attempt) for body in live if isinstance(body, StepStarted)]
    assert started == [(1, 1), (2, 1), (2, 2)]
    assert require_located(live)[-1] == LONG
    assert kinds(replayed) == kinds(await process.follow(run))
    assert deltas(await process.follow(run)) == [], "they are replayed on request only"


def require_located(bodies: list[object]) -> list[str]:
    """Returns the words of each part. Each delta continues its part, and each attempt begins it again."""
    parts: dict[str, str] = {}
    done: list[str] = []
    for body in bodies:
        if isinstance(body, StepStarted):
            done += parts.values()
            parts = {}
        elif isinstance(body, Delta):
            assert body.offset == len(parts.get(body.otid, ""))
            parts[body.otid] = parts.get(body.otid, "") + body.text
    return [*done, *parts.values()]


async def test_follower_from_the_middle_receives_every_event_once(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say(LONG))
    world.model.follow(call("archival_memory_insert", content="tea"), held)
    run = await process.start(agent, stream_tokens=True)
    await held.asked.wait()
    late = [asyncio.ensure_future(process.follow(run, after, deltas=True)) for after in (0, 1, 2)]
    await until(lambda: len(process.event_broker._followers.get(run.id, ())) == 3)
    held.released.set()
    entries = [told(await task) for task in late]
    await process.idle()
    whole = told(await process.follow(run, deltas=True))
    assert entries[0] == whole
    for after, events in zip((1, 2), entries[1:], strict=True):
        assert events == told(await process.follow(run, after, deltas=True)), "as a replay from there"
        assert [body for body in whole if body in events] == events
    assert require_located(entries[2])[-1] == LONG


async def test_attempt_after_a_takeover_replaces_earlier_deltas(world: World) -> None:
    first, second = world.process(), world.process("instance-2")
    agent = await world.agent(first)

    world.model.follow(Cut(say("Never finished, and never")), held := Held(say(LONG)), say(LONG))
    run = await first.start(agent, stream_tokens=True)
    await held.asked.wait()
    await first.runs.streamer.log.flush(run.id)
    world.clock.advance(31)
    await second.recover()
    held.released.set()
    await first.idle()
    bodies = told(await second.follow(run, deltas=True))
    started = [(body.number, body.attempt) for body in bodies if isinstance(body, StepStarted)]
    assert started[:2] == [(1, 1), (1, 2)]
    assert (len(started), started[2][0]) == (3, 1)
    assert started[2][1] > 2, "a higher attempt"
    assert require_located(bodies)[-1] == LONG
    await first.worker.stop()


async def test_another_replica_replays_the_deltas(world: World, process: Process) -> None:
    other = world.process("instance-2")
    agent = await world.agent(process)
    first, second = Held(call("archival_memory_insert", content="tea")), Held(say(LONG))
    world.model.follow(first, second)
    run = await process.start(agent, stream_tokens=True)
    await first.asked.wait()
    following = asyncio.ensure_future(other.follow(run, deltas=True))
    await until(lambda: run.id in other.event_broker.followed)
    first.released.set()
    await second.asked.wait()
    await other.replica_watcher.look_once()
    second.released.set()
    while not following.done():
        await other.replica_watcher.look_once()
        await asyncio.sleep(0)
    await process.idle()
    assert told(await following) == told(await process.follow(run, deltas=True))
    assert require_located(told(await following))[-1] == LONG


async def test_runs_in_the_foreground_store_no_deltas(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say(LONG))
    events = await process.send(agent, stream_tokens=True)
    assert deltas(events)
    assert not [name for name in process.faults.calls if name.startswith("deltas.")]
    run = await process.outcome(agent)
    assert deltas(await process.follow(run, deltas=True)) == []
    world.model.follow(say(LONG))
    await process.follow(await process.start(agent))
    assert not [name for name in process.faults.calls if name == "deltas.append"], "nor those that do not stream"


async def test_crash_between_batches_loses_no_durable_event(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.follow(call("archival_memory_insert", content="tea"), say(LONG), say(LONG))

    async def die(name: str) -> None:
        if name == "recall.commit_step" and len(world.model.requests) == 2:
            first.faults.crashes_at = first.faults.points - 2

    first.faults.on_call = die
    run = await first.start(agent, stream_tokens=True)
    await crashed(first)
    world.faults = type(world.faults)()
    second = world.process()
    await second.recover()
    events = await second.follow(run, deltas=True)
    assert kinds(events) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert require_located(told(events))[-1] == LONG
