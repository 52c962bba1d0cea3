"""Crashes at every point of a compaction within a run leave the old or the new window, and one summary."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StopReason
from mnemesh_testkit.plugin import Sample
from mnemesh_types.messages import Role

from ..support.faults import Crash, Faults
from ..support.world import ME, Process, World, crashed, kinds, opened, require_valid
from .conftest import Speaker, roles, small_agent, summary_of, talk

NEWEST = PageQuery(1, ascending=False)
KINDS = pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2], ids=["v3", "v2"])
STAGES = pytest.mark.parametrize("stage", ["before", "after"])


async def prepare(world: World, kind: AgentType, stage: str) -> tuple[Agent, Speaker]:
    """Creates an agent whose next turn compacts before its first request, or after its answer."""
    process = world.process()
    agent = await small_agent(world, process, kind)
    speaker = Speaker(world)
    await talk(process, agent, 8)
    if stage == "after":
        speaker.used = 5_300
    return agent, speaker


def input_of(stage: str) -> str:
    return "Long words. " * (1_350 if stage == "before" else 2)


async def run_and_crash(world: World, agent: Agent, stage: str, point: int | None) -> tuple[Process, int]:
    world.faults = Faults()
    world.faults.crashes_at = point
    process = world.process()
    with contextlib.suppress(Crash):
        await process.send(agent, input_of(stage), include_compaction_events=True)
    await crashed(process)
    return process, world.faults.points


async def run_of(process: Process, agent: Agent, text: str) -> Any:
    runs = (await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), NEWEST)).items
    said = runs[0].input[0].content[0]
    return runs[0] if getattr(said, "text", "") == text else None


@KINDS
@STAGES
async def test_compaction_in_run_survives_crash_at_any_point(
    tmp_path: Path, kind: AgentType, stage: str, sample: Sample
) -> None:
    async with opened(tmp_path) as world:
        agent, speaker = await prepare(world, kind, stage)
        _, points = await run_and_crash(world, agent, stage, None)
        assert len(speaker.summaries) == 1
        assert roles(world.window(agent).messages)[1] == "summary"
        seen: Counter[str] = Counter()
        for point in sample(range(points), 5, 2):
            world.faults = Faults()
            seen[await survives(world, kind, stage, point)] += 1
    assert {"old", "new"} <= set(seen), "a crash before and one after the window was replaced"


async def survives(world: World, kind: AgentType, stage: str, point: int) -> str:
    """Crashes the process of one agent at a point. Returns which window was stored then."""
    agent, speaker = await prepare(world, kind, stage)
    before = [m.id for m in world.window(agent).messages]
    count = len(speaker.summaries)
    await run_and_crash(world, agent, stage, point)
    window = world.window(agent).messages
    is_new = roles(window)[1] == "summary"
    if not is_new:
        assert [m.id for m in window][: len(before)] == before, point
    world.faults = Faults()
    second = world.process()
    journalled = await is_journalled(second, agent)
    answered = len(speaker.summaries)
    await second.recover()
    run = await run_of(second, agent, input_of(stage))
    if run is None:
        return "unsent"
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, StopReason.END_TURN), (point, run.error)
    window = world.window(agent).messages
    require_valid(window)
    assert summary_of(window) == "They spoke of work.", point
    assert len(window) < len(before) + 3, point
    rows = [row for row in world.recall.rows[agent.id] if row.role is Role.SUMMARY]
    assert len(rows) == 1, point
    assert len(speaker.summaries) - count <= 2, point
    if journalled or is_new:
        assert len(speaker.summaries) == answered, f"{point}: what was journalled is asked for again"
    events = await second.follow(run)
    assert Counter(kinds(events))["CompactionEvent"] == Counter(kinds(events))["summary"] == 1, point
    assert kinds(events).count("assistant") == 1, point
    assert len({row.id for row in world.recall.rows[agent.id]}) == len(world.recall.rows[agent.id])
    await second.worker.stop()
    return "new" if is_new else "old"


async def is_journalled(process: Process, agent: Agent) -> bool:
    runs = (await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), NEWEST)).items
    entries = await process.stores.runs.journal(runs[0].id)
    return any(entry.kind == "compaction" for entry in entries)


async def test_concurrent_change_of_window_is_not_overwritten(world: World, process: Process) -> None:
    agent, speaker = await prepare(world, AgentType.LETTA_V1, "after")

    async def reset_window(name: str) -> None:
        if name != "recall.replace_context" or len(speaker.summaries) != 1:
            return
        process.faults.on_call = None
        window = world.window(agent)
        await world.recall.replace_context(
            "the-owner", agent.id, window.conversation_id, window.version, [m.id for m in window.messages[:1]]
        )

    process.faults.on_call = reset_window
    await process.send(agent, input_of("after"))
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert roles(world.window(agent).messages) == ["system"]
    speaker.used = 100
    await process.send(agent, "Hello?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
