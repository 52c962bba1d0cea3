"""The stream of a group run: live deltas, their storage, replays, and turns that another replica executes."""

import asyncio

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.groups import executor
from mnemesh_orchestrator.model.events import Delta, MemberEvent, RunEvent, StepStarted
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus

from ..support.groups import Cast, bodies, send, start
from ..support.model import Held, call, say
from ..support.world import ME, Process, World, each

ALL = PageQuery(50, ascending=True)


def words_of(cast: Cast, events: list[RunEvent]) -> dict[str, str]:
    """Returns the text of the deltas by agent, and checks that each continues the one before."""
    texts: dict[str, str] = {}
    for event in events:
        if isinstance(event.body, MemberEvent) and isinstance(delta := event.body.body, Delta):
            name = cast.name(event.body.agent_id)
            assert (delta.offset, event.step_id is None, event.sequence) == (len(texts.get(name, "")), False, None)
            texts[name] = texts.get(name, "") + delta.text
    return texts


@pytest.mark.parametrize("background", [True, False])
async def test_deltas_are_live_and_those_of_background_runs_are_stored(
    cast: Cast, process: Process, background: bool
) -> None:
    cast.says("Ada", "A longer text, so that it has several deltas.")
    group = await cast.group(process, "Ada", "Bob")
    expected = {"Ada": "A longer text, so that it has several deltas.", "Bob": "Bob speaks."}
    if background:
        run = await start(process, group, stream_tokens=True)
        live = await process.follow(run)
    else:
        live = await send(process, group, stream_tokens=True)
        run = await process.runs.get(ME, live[0].run_id)
    assert words_of(cast, live) == expected
    assert [step.number for step in bodies(live, StepStarted)] == [1, 1]
    replayed = await process.follow(run, deltas=True)
    assert words_of(cast, replayed) == (expected if background else {})
    order = [type(event.body.body).__name__ for event in replayed if isinstance(event.body, MemberEvent)]
    assert order.index("MemberTurnStarted") == 0
    rest = await process.follow(run, after=4)
    assert [event.sequence for event in rest if event.sequence] == list(range(5, 10))


async def test_events_of_a_long_turn_arrive_while_it_runs(cast: Cast, process: Process) -> None:
    held = Held(say("Done."))
    cast.says("Ada", call("archival_memory_insert", content="one"), held)
    group = await cast.group(process, "Ada", "Bob")
    run = await start(process, group)
    await held.asked.wait()
    seen: list[RunEvent] = []
    async for event in each(process.runs.follow(ME, run.id, 0, 30)):
        seen.append(event)
        if isinstance(event.body, MemberEvent) and getattr(event.body.body, "kind", "") == "tool_return":
            held.released.set()
    assert cast.shown(seen)[:4] == [
        "Ada MemberTurnStarted 1",
        "Ada tool_call",
        "Ada tool_return",
        "Ada assistant: Done.",
    ]


async def test_turn_that_another_replica_executes(cast: Cast, world: World, process: Process) -> None:
    other = world.process("instance-2")
    busy = Held(say("To somebody else."))
    cast.says("Bob", busy, call("archival_memory_insert", content="one"), "Bob speaks.")
    await other.start(cast.agents["Bob"], "A long question")
    await busy.asked.wait()
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    run = await start(process, group)
    following = asyncio.ensure_future(process.follow(run))
    while not any(turn.agent_id == cast.agents["Bob"].id for turn in await turns_of(process, run.id)):
        await asyncio.sleep(0)
    busy.released.set()
    while not following.done():
        await process.replica_watcher.look_once()
        await asyncio.sleep(0)
    assert cast.shown(await following)[3:8] == [
        "Bob MemberTurnStarted 2",
        "Bob tool_call",
        "Bob tool_return",
        "Bob assistant: Bob speaks.",
        "Bob MemberTurnEnded 2",
    ]
    assert cast.turn("Cleo")[-2] == "system: Bob: Bob speaks."
    await other.worker.stop()


async def turns_of(process: Process, run_id: str):
    return (await process.runs.list(ME, RunFilter(parent_run_id=run_id), ALL)).items


async def test_run_is_taken_over_from_a_replica_that_stalls(cast: Cast, world: World, process: Process) -> None:
    """The first replica continues after the takeover, and changes nothing."""
    other = world.process("instance-2")
    held = Held(say("Said twice."))
    cast.says("Bob", held, "Bob speaks.")
    group = await cast.group(process, "Ada", "Bob", "Cleo")
    run = await start(process, group)
    await held.asked.wait()
    world.clock.advance(31)
    await other.recover()
    while not (await other.runs.get(ME, run.id)).status.ended:
        await other.replica_watcher.look_once()
        await asyncio.sleep(0)
    held.released.set()
    await process.replica_watcher.look_once()
    await process.idle()
    events = await other.follow(run)
    assert [text for text in cast.shown(events) if "assistant" in text] == [
        "Ada assistant: Ada speaks.",
        "Bob assistant: Bob speaks.",
        "Cleo assistant: Cleo speaks.",
    ]
    assert (await other.runs.get(ME, run.id)).status is RunStatus.COMPLETED
    assert cast.turn("Bob")[-1] == "assistant: Bob speaks."


async def test_events_that_follow_closely_share_a_batch() -> None:
    clock = FrozenClock()

    def event(sequence: int | None) -> RunEvent:
        return RunEvent("run-1", clock.now(), StepStarted(1, 1), sequence)

    gate = asyncio.Event()

    async def stream():
        yield [event(1)]
        yield [event(2), event(None), event(3)]
        await gate.wait()
        yield [event(4)]

    seen = []
    async for batch in executor.yield_batches(stream()):
        seen.append([item.sequence for item in batch])
        if seen[-1] == [3]:
            gate.set()
    assert seen == [[1, 2], [None], [3], [4]]
