"""A cancelled run stops at once and leaves a history that a model can continue."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.runs import CancelOutcome, Run, RunFilter, RunStatus, StopReason

from ..support.faults import Crash, Faults
from ..support.model import Held, by_place, call, say, together
from ..support.world import ME, Process, World, crashed, kinds, lines, require_valid

ANY = RunFilter()


async def cancel(process: Process, run: Run) -> CancelOutcome:
    return (await process.runs.cancel(ME, ANY, [run.id]))[run.id]


async def goes_on(world: World, process: Process, agent: Agent) -> None:
    """Asserts that the window is valid and that the agent takes another turn."""
    require_valid(world.window(agent).messages)
    world.model.follow(say("Here I am."))
    await process.send(agent, "Are you there?")
    assert lines(world.turn(agent))[-1] == "assistant text: Here I am."


class Gate:
    """Holds the first call of a name, before or after its effect, until it is opened."""

    def __init__(self, world: World, name: str, *, behind: bool = False) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()
        self._name = name
        if behind:
            world.faults.on_effect = self
        else:
            world.faults.on_call = self

    async def __call__(self, name: str) -> None:
        if name == self._name and not self.reached.is_set():
            self.reached.set()
            await self.opened.wait()


async def test_cancel_during_the_model_call(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Too late."))
    world.model.follow(held)
    run = await process.start(agent)
    await held.asked.wait()
    assert await cancel(process, run) is CancelOutcome.CANCELLED
    ended = await process.outcome(agent)
    assert (ended.status, ended.stop_reason) == (RunStatus.CANCELLED, StopReason.CANCELLED)
    assert kinds(await process.follow(run)) == ["StopEvent", "UsageEvent"]
    assert lines(world.turn(agent)) == ["user text: Hello"]
    await goes_on(world, process, agent)


async def test_cancel_while_a_tool_runs(world: World, process: Process) -> None:
    agent = await world.agent(process)
    gate = Gate(world, "archival.insert")
    world.model.follow(
        together(call("memory_insert", label="human", new_str="Ada"), call("archival_memory_insert", content="tea"))
    )
    run = await process.start(agent)
    await gate.reached.wait()
    assert await cancel(process, run) is CancelOutcome.CANCELLED
    assert lines(world.turn(agent))[3:] == [
        "tool success of memory_insert: " + world.turn(agent)[2].tool_returns[0].text,
        "tool error of archival_memory_insert: The run was cancelled before this tool was run.",
    ]
    assert kinds(await process.follow(run)) == ["tool_call", "tool_return", "StopEvent", "UsageEvent"]
    await goes_on(world, process, agent)


@pytest.mark.parametrize("name", ["runs.write", "recall.commit_step", "blocks.get", "recall.get_context"])
@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
async def test_cancel_during_a_write_or_read(world: World, process: Process, name: str, *, behind: bool) -> None:
    agent = await world.agent(process)
    gate = Gate(world, name, behind=behind)
    world.model.follow(call("archival_memory_insert", content="tea"), say("Kept."))
    run = await process.start(agent)
    await gate.reached.wait()
    cancelling = asyncio.ensure_future(cancel(process, run))
    while not process.worker._active[run.id].cancelled:
        await asyncio.sleep(0)
    gate.opened.set()
    assert await cancelling is CancelOutcome.CANCELLED
    require_valid(world.window(agent).messages)
    events = kinds(await process.follow(run))
    assert events[-2:] == ["StopEvent", "UsageEvent"]
    await goes_on(world, process, agent)


async def test_interrupted_commit_publishes_its_events_if_it_took_effect(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Said and kept."))
    world.faults.lost = {"recall.commit_step": 1}
    gate = asyncio.Event()

    async def waits() -> None:
        gate.set()
        await asyncio.Event().wait()

    world.on_wait = waits
    run = await process.start(agent)
    await gate.wait()
    assert await cancel(process, run) is CancelOutcome.CANCELLED
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Said and kept."]
    assert kinds(await process.follow(run)) == ["assistant", "StopEvent", "UsageEvent"]


async def test_concurrent_cancellations(world: World, process: Process) -> None:
    agent = await world.agent(process)
    gate = Gate(world, "archival.insert")
    world.model.follow(call("archival_memory_insert", content="tea"))
    run = await process.start(agent)
    await gate.reached.wait()
    assert await asyncio.gather(*(process.worker.cancel(run) for _ in range(3))) == [True] * 3
    assert (await process.outcome(agent)).status is RunStatus.CANCELLED


async def test_cancel_while_the_end_is_stored_is_too_late(world: World, process: Process) -> None:
    agent = await world.agent(process)
    gate = Gate(world, "runs.finish")
    world.model.follow(say("Done."))
    run = await process.start(agent)
    await gate.reached.wait()
    cancelling = asyncio.ensure_future(cancel(process, run))
    await asyncio.sleep(0)
    gate.opened.set()
    assert await cancelling is CancelOutcome.ENDED_BEFORE
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED


async def test_cancel_before_the_first_step(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Never asked."))
    run = await process.start(agent)
    conductor = process.worker
    assert await conductor.cancel(run)
    assert world.model.requests == []
    assert (await process.outcome(agent)).status is RunStatus.CANCELLED
    await goes_on(world, process, agent)


async def test_queued_run_is_cancelled_without_starting(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    first, second = await process.start(agent, "First"), await process.start(agent, "Second")
    await held.asked.wait()
    following = asyncio.ensure_future(process.follow(second))
    assert await cancel(process, second) is CancelOutcome.CANCELLED
    assert kinds(await following) == ["StopEvent", "UsageEvent"]
    held.released.set()
    await process.follow(first)
    await process.idle()
    assert lines(world.turn(agent)) == ["user text: First", "assistant text: One."]


async def test_cancel_every_run_of_a_conversation(world: World, process: Process) -> None:
    agent, other = await world.agent(process), await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    runs = [await process.start(agent, text) for text in ("First", "Second", "Third")]
    await held.asked.wait()
    outcomes = await process.runs.cancel(ME, RunFilter(conversation_id=agent.default_conversation_id), [])
    assert outcomes == {run.id: CancelOutcome.CANCELLED for run in runs}
    assert lines(world.turn(agent)) == ["user text: First"]
    assert await process.runs.cancel(ME, RunFilter(agent_ids=(other.id,)), []) == {}


async def test_cancel_of_an_ended_or_unknown_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Done."))
    await process.send(agent)
    run, unknown = await process.outcome(agent), new_id("run")
    outcomes = await process.runs.cancel(ME, ANY, [run.id, unknown])
    assert outcomes == {run.id: CancelOutcome.ENDED_BEFORE, unknown: CancelOutcome.NOT_FOUND}


async def test_cancel_of_a_run_left_by_a_crash(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(call("archival_memory_insert", content="tea"), say("Never."))
    first.faults.on_call = crashes_at(first.faults, "archival.insert")
    with pytest.raises(Crash):
        await first.send(agent)
    await crashed(first)
    world.faults = Faults()
    second = world.process()
    run = await second.outcome(agent)
    assert run.status is RunStatus.RUNNING
    assert await cancel(second, run) is CancelOutcome.CANCELLED
    assert lines(world.turn(agent))[-1] == (
        "tool error of archival_memory_insert: The run was cancelled before this tool was run."
    )
    assert len(world.model.requests) == 1
    await goes_on(world, second, agent)
    await second.worker.stop()


def crashes_at(faults: Faults, name: str) -> Callable[[str], Awaitable[None]]:
    """Crashes the process before the first call of that name."""

    async def die(made: str) -> None:
        if made == name:
            faults.crashes_at = faults.points - 2
            faults.at(faults.points - 2)

    return die
