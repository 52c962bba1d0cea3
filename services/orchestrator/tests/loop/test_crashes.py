"""A crash at every point of a turn: the next process completes it, and nothing is lost or repeated."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.port import FinishReason
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.events import RunAccepted, RunEvent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import RunFilter, RunRequest, RunStatus, StepFilter, StopReason
from mnemesh_testkit.plugin import Sample
from mnemesh_types.messages import TextPart, ToolStatus

from ..support.faults import Crash, Faults
from ..support.model import by_place, call, say
from ..support.world import ME, Process, World, crashed, each, kinds, lines, opened, require_valid
from .five_tools import FIVE_TOOLS, HEARTBEATS, require_each_effect_once, transcript
from .process_crashes import die_in, next_life

ONE = PageQuery(1, ascending=False)


async def live_and_die(world: World, agent: Agent, point: int | None) -> tuple[Process, bool]:
    """Runs a process that sends a message and crashes at a point. Returns whether it stored the run."""
    world.faults = Faults()
    world.faults.crashes_at = point
    process = world.process()
    try:
        await process.send(agent, "Do it all.", stream_tokens=True)
    except Crash:
        await crashed(process)
        return process, False
    await crashed(process)
    return process, True


async def points_of(directory: Path, kind: AgentType, script: tuple[Any, ...]) -> tuple[int, list[str]]:
    """Returns the number of points of an undisturbed turn, and its transcript."""
    directory.mkdir()
    async with opened(directory) as world:
        agent = await world.agent(world.process(), kind, include_base_tool_rules=False)
        world.model.script = by_place(*script)
        await live_and_die(world, agent, None)
        await require_each_effect_once(world, agent)
        return world.faults.points, transcript(world, agent)


@pytest.mark.parametrize(
    ("kind", "script"),
    [(AgentType.LETTA_V1, FIVE_TOOLS), (AgentType.MEMGPT_V2, HEARTBEATS)],
    ids=["plain", "heartbeats"],
)
async def test_turn_survives_a_crash_at_every_point(
    tmp_path: Path, kind: AgentType, script: tuple[Any, ...], sample: Sample
) -> None:
    points, whole = await points_of(tmp_path / "whole", kind, script)
    assert points > 50
    async with opened(tmp_path) as world:
        world.model.script = by_place(*script)
        for point in sample(range(points), 16, 2):
            await survives(world, kind, script, point, whole)


async def survives(world: World, kind: AgentType, script: tuple[Any, ...], point: int, whole: list[str]) -> None:
    world.faults, world.model.requests = Faults(), []
    world.blocks.effects.clear()
    agent = await world.agent(world.process(), kind, include_base_tool_rules=False)
    first, was_stored = await live_and_die(world, agent, point)
    journalled = await asked_before(first, agent, world)
    before = len(world.model.requests)
    second = await next_life(world)
    runs = (await second.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ONE)).items
    if not runs:
        assert not was_stored, f"point {point}: a run that was accepted is gone"
        assert len(world.window(agent).messages) == (1 if kind is AgentType.LETTA_V1 else 4)
        return
    run = runs[0]
    where = f"point {point}, {world.faults.calls[-3:]}"
    assert run.status is RunStatus.COMPLETED, (where, run.error)
    assert run.stop_reason is StopReason.END_TURN, where
    assert transcript(world, agent) == whole, where
    require_valid(world.window(agent).messages)
    await require_each_effect_once(world, agent)
    assert run.step_count == len(script), where
    # What a journal or a commit holds is not asked for again.
    assert len(world.model.requests) - before <= len(script) - journalled, where
    events = await second.follow(run)
    assert kinds(events)[-2:] == ["StopEvent", "UsageEvent"], where
    assert kinds(events).count("tool_return") == 5, where
    assert len(world.recall.rows[agent.id]) == len(world.window(agent).messages), where


async def asked_before(process: Process, agent: Agent, world: World) -> int:
    """Returns the number of answers that the crashed process had journalled."""
    world.faults = Faults()
    reader = world.process()
    runs = (await reader.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ONE)).items
    if not runs:
        return 0
    entries = await reader.stores.runs.journal(runs[0].id)
    return len({entry.step_id for entry in entries if entry.kind == "answer"})


async def test_started_custom_tool_does_not_run_again(world: World) -> None:
    world.tools.add("launch", "launched")
    first = world.process()
    agent = await world.agent(first, tool_names=("launch",))
    world.model.script = by_place(call("launch"), say("I do not know."))
    await die_in(world, first, agent, "tools.execute")
    assert len(world.tools.executed) == 1
    second = await next_life(world)
    assert len(world.tools.executed) == 1
    returned = world.turn(agent)[2].tool_returns[0]
    assert (returned.status, returned.text) == (ToolStatus.ERROR, INTERRUPTED)
    assert "interrupted" in returned.text
    assert (await second.outcome(agent)).status is RunStatus.COMPLETED


async def test_idempotent_tool_runs_again(world: World) -> None:
    world.tools.add("measure", "42", idempotent=True)
    first = world.process()
    agent = await world.agent(first, tool_names=("measure",))
    world.model.script = by_place(call("measure"), say("42."))
    await die_in(world, first, agent, "tools.execute")
    await next_life(world)
    assert len(world.tools.executed) == 2
    assert lines(world.turn(agent))[2] == "tool success of measure: 42"


async def test_custom_tool_that_was_not_started_runs(world: World) -> None:
    world.tools.add("launch", "launched")
    first = world.process()
    agent = await world.agent(first, tool_names=("launch",))
    world.model.script = by_place(call("launch"), say("Done."))
    await die_in(world, first, agent, "runs.write", behind=True)
    assert world.tools.executed == []
    await next_life(world)
    assert len(world.tools.executed) == 1
    assert lines(world.turn(agent))[2] == "tool success of launch: launched"


async def test_resumed_turn_waits_for_the_tools_service(world: World) -> None:
    world.tools.add("launch", "launched")
    first = world.process()
    agent = await world.agent(first, tool_names=("launch",))
    world.model.script = by_place(call("launch"), say("Done."))
    await die_in(world, first, agent, "runs.write", behind=True)
    world.faults = Faults()
    world.faults.unavailable = {"tools.": 2}
    second = world.process()
    await second.recover()
    assert len(world.waits) == 2
    assert lines(world.turn(agent))[2] == "tool success of launch: launched"


@pytest.mark.parametrize("days", [28, 30])
async def test_effects_are_not_repeated_once_services_may_have_forgotten_them(world: World, days: int) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(call("archival_memory_insert", content="one"), say("Done."))
    await die_in(world, first, agent, "archival.insert")
    world.clock.advance(days * 24 * 3600)
    await next_life(world)
    (returned,) = world.turn(agent)[-2].tool_returns
    assert returned.status is (ToolStatus.SUCCESS if days == 28 else ToolStatus.ERROR)
    assert await world.archival.texts(agent.id) == ["one"]


async def test_resumed_turn_does_not_clear_its_own_messages(world: World) -> None:
    first = world.process()
    agent = await world.agent(first, message_buffer_autoclear=True)
    world.model.script = by_place(say("One."))
    await first.send(agent, "First")
    for place in ("recall.replace_context", "recall.commit_step"):
        before = await die_in(world, world.process(), agent, place)
        second = await next_life(world)
        assert (await second.outcome(agent)).status is RunStatus.COMPLETED
        assert lines(world.turn(agent)) == ["user text: Go.", "assistant text: One."]
        assert len(world.recall.rows[agent.id]) == before + 2


async def test_truncated_answer_is_still_truncated_after_a_crash(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(say("Once upon a", finish=FinishReason.LENGTH))
    await die_in(world, first, agent, "recall.commit_step")
    second = await next_life(world)
    assert (await second.outcome(agent)).stop_reason is StopReason.MAX_TOKENS_EXCEEDED
    assert len(world.model.requests) == 1


async def test_run_whose_model_disappeared_in_a_crash_ends_and_frees_its_conversation(world: World) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(call("archival_memory_insert", content="one"), say("Done."))
    await die_in(world, first, agent, "archival.insert")
    world.faults = Faults()
    second = world.process()
    await second.stores.agents.update(
        None, ME.organization_id, agent.id, lambda agent: replace(agent, model="gone/model")
    )
    await second.recover()
    run = await second.outcome(agent)
    assert (run.status, run.error and run.error.reason) == (RunStatus.FAILED, "MODEL_UNKNOWN")
    assert kinds(await second.follow(run)) == ["tool_call", "ErrorEvent", "StopEvent", "UsageEvent"]
    assert await second.stores.leases.claimable("instance-1") == ()


@pytest.mark.parametrize("point", ["runs.start", "archival.insert", "recall.commit_step", "runs.finish"])
async def test_repeated_request_after_a_crash_returns_the_same_run(world: World, point: str) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(call("archival_memory_insert", content="one"), say("Kept."))
    request = RequestKey(ME.organization_id, "SendMessage", "r-1", "f")

    async def send(process: Process) -> list[RunEvent]:
        message = InputMessage((TextPart("Keep this."),))
        stream = process.runs.send(ME, request, RunRequest(agent.id, "", [message], RunConfig()))
        return [event async for event in each(stream)]

    faults = first.faults

    async def die(name: str) -> None:
        if name == point and faults.crashes_at is None:
            faults.crashes_at = faults.points - 1

    faults.on_call = die
    with pytest.raises(Crash):
        await send(first)
    await crashed(first)
    world.faults = Faults()
    second = world.process()
    again = asyncio.ensure_future(send(second))
    await second.recover()
    while not again.done():
        # The first look may have been just ahead of the request.
        await second.recover()
        await asyncio.sleep(0)
    events = await again
    assert isinstance(events[0].body, RunAccepted)
    assert events[0].body.replayed
    assert kinds(events) == ["tool_call", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    assert len((await second.runs.list(ME, RunFilter(), PageQuery(9, ascending=True))).items) == 1
    assert await world.archival.texts(agent.id) == ["one"]
    assert len(world.turn(agent)) == 4


async def test_traces_survive_a_crash(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(
        replace(call("archival_memory_insert", content="x"), request_body='{"a":1}', response_body='{"b":1}'),
        replace(say("Done."), request_body='{"a":2}', response_body='{"b":2}'),
    )

    async def crash(name: str) -> None:
        if name == "archival.insert":
            world.faults.has_crashed = True
            raise Crash

    world.faults.on_call = crash
    with pytest.raises(Crash):
        await process.send(agent)
    await crashed(process)
    second = await next_life(world)
    run = await second.outcome(agent)
    page = await second.steps.list(ME, StepFilter(run_id=run.id), PageQuery(10, ascending=True))
    traces = [await second.steps.trace(ME, step.id) for step in sorted(page.items, key=lambda step: step.number)]
    assert [(trace.request, trace.response) for trace in traces] == [('{"a":1}', '{"b":1}'), ('{"a":2}', '{"b":2}')]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_result_that_the_commit_alone_holds_is_shown_once_and_not_computed_again(
    world: World, *, is_cancelled: bool
) -> None:
    first = world.process()
    agent = await world.agent(first)
    world.model.script = by_place(call("archival_memory_search", query="zebra"), say("Nothing."))
    faults, shown = first.faults, list[RunEvent]()

    async def die_in_the_second_step(name: str) -> None:
        if faults.calls.count("model.stream") == 2 and faults.crashes_at is None:
            faults.crashes_at = faults.points - 1

    async def send() -> None:
        async for events in first.runs.send(
            ME, None, RunRequest(agent.id, "", [InputMessage((TextPart("Go."),))], RunConfig())
        ):
            shown.extend(events)

    faults.on_call = die_in_the_second_step
    with pytest.raises(Crash):
        await send()
    await crashed(first)
    assert kinds(shown) == ["tool_call", "tool_return"]
    world.faults = Faults()
    second = world.process()
    run = await second.outcome(agent)
    stored = await second.stores.runs.events(run.id, 0, 10)
    assert len(stored) == 1, "the return is stored with the next write"
    if is_cancelled:
        await second.runs.cancel(ME, RunFilter(), [run.id])
    await second.recover()
    assert world.faults.calls.count("archival.search") == 0
    events = await second.follow(run)
    bodies = {event.sequence: event.body for event in events}
    assert all(bodies[event.sequence] == event.body for event in shown if event.sequence is not None)
    ended = ["StopEvent", "UsageEvent"] if is_cancelled else ["assistant", "StopEvent", "UsageEvent"]
    assert kinds(events) == ["tool_call", "tool_return", *ended]
