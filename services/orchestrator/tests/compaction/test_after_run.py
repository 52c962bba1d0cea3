"""A compaction that is due at the end of a turn follows the run: no client waits for the summary."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.inputs import InputMessage, OnBusy, RunConfig
from mnemesh_orchestrator.model.runs import COMPACTION, RunRequest, RunStatus, StepFilter, StopReason
from mnemesh_testkit.plugin import Sample
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.messages import Role, TextPart

from ..support.faults import Crash, Faults
from ..support.model import Held, say
from ..support.world import ME, Process, World, crashed, kinds, opened, require_valid
from .conftest import Speaker, roles, small_agent, summary_of, talk

BOTH = pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2], ids=["v3", "v2"])


async def due_agent(world: World, kind: AgentType = AgentType.LETTA_V1) -> tuple[Process, Agent, Speaker]:
    """Creates an agent whose next turn ends with a due compaction."""
    process, speaker = world.process(), Speaker(world)
    agent = await small_agent(world, process, kind)
    await talk(process, agent, 8)
    speaker.used = 5_300
    return process, agent, speaker


@BOTH
async def test_answer_and_stop_do_not_wait_for_the_summary(world: World, kind: AgentType) -> None:
    process, agent, speaker = await due_agent(world, kind)
    held = Held(say("They spoke of work."))
    speaker.summary = lambda request: held
    async with asyncio.timeout(scaled(60)):
        run = await process.start(agent, "And?")
        events = await process.follow(run)
        assert kinds(events)[-2:] == ["StopEvent", "UsageEvent"]
        assert (await process.outcome(agent)).status is RunStatus.COMPLETED
        await held.asked.wait()
    window = world.window(agent)
    assert roles(window.messages)[1] != "summary"
    held.released.set()
    await process.idle()
    assert summary_of(world.window(agent).messages) == "They spoke of work."
    steps = await process.steps.list(ME, StepFilter(run_id=run.id), PageQuery(9, ascending=True))
    assert [step.origin for step in steps.items].count(COMPACTION) == 1


@pytest.mark.parametrize("on_busy", [OnBusy.WAIT, OnBusy.REJECT])
async def test_next_run_starts_after_the_compaction_and_is_not_refused(world: World, on_busy: OnBusy) -> None:
    process, agent, speaker = await due_agent(world)
    held = Held(say("They spoke of work."))
    speaker.summary = lambda request: held
    async with asyncio.timeout(scaled(60)):
        await process.follow(await process.start(agent, "And?"))
        await held.asked.wait()
        speaker.used = 100
        message = [InputMessage((TextPart("Go on."),))]
        run = await process.runs.start(ME, None, RunRequest(agent.id, "", message, RunConfig(on_busy=on_busy)))
        assert run.status is RunStatus.CREATED
        held.released.set()
        await process.follow(run)
    assert "They spoke of work." in "".join(message.text for message in world.model.last.messages)
    assert len(speaker.summaries) == 1


async def test_stopped_process_leaves_the_compaction_to_the_next_turn(world: World) -> None:
    process, agent, speaker = await due_agent(world)
    held = Held(say("They spoke of work."))
    speaker.summary = lambda request: held
    async with asyncio.timeout(scaled(60)):
        await process.follow(await process.start(agent, "And?"))
        await held.asked.wait()
        await process.worker.stop()
        second = world.process("instance-2")
        speaker.summary = lambda request: say("They spoke of work.")
        await second.send(agent, "Go on.")
    assert (await second.outcome(agent)).stop_reason is StopReason.END_TURN
    assert summary_of(world.window(agent).messages) == "They spoke of work."


@pytest.mark.full
@BOTH
async def test_crash_at_any_point_of_the_turn_loses_nothing(tmp_path: Path, kind: AgentType, sample: Sample) -> None:
    async with opened(tmp_path) as world:
        process, agent, _ = await due_agent(world, kind)
        world.faults = Faults()
        await world.process().send(agent, "And?")
        points = world.faults.points
        await process.worker.stop()
        assert roles(world.window(agent).messages)[1] == "summary"
        for point in sample(range(points), 16, 2):
            world.faults = Faults()
            await survives(world, kind, point)


async def survives(world: World, kind: AgentType, point: int) -> None:
    """Crashes the process of a new agent at a point, and has the next one go on."""
    first, agent, _ = await due_agent(world, kind)
    await first.worker.stop()
    world.faults = Faults()
    world.faults.crashes_at = point
    process = world.process()
    with contextlib.suppress(Crash):
        await process.send(agent, "And?")
    await crashed(process)
    world.faults = Faults()
    second = world.process()
    await second.recover()
    run = await second.start(agent, "Go on.")
    await second.recover()
    assert (await second.runs.get(ME, run.id)).stop_reason is StopReason.END_TURN, point
    window = world.window(agent).messages
    require_valid(window)
    assert summary_of(window) == "They spoke of work.", point
    assert roles(window).count("summary") == 1, point
    texts = [row.text for row in world.recall.rows[agent.id] if row.role is Role.USER]
    assert texts.count("Go on.") == 1, point
    assert len({row.id for row in world.recall.rows[agent.id]}) == len(world.recall.rows[agent.id])
    await second.worker.stop()
