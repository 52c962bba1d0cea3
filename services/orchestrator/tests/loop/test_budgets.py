"""Budgets in turns: a run that meets its limit, runs beside one another, crashes, and the other calls of models."""

import asyncio
from pathlib import Path

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import BudgetExceeded
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import ErrorEvent, StopEvent
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StepFilter, StopReason
from mnemesh_testkit.plugin import Sample
from mnemesh_types.agents import (
    Budget,
    BudgetLimit,
    BudgetPeriod,
    BudgetUsage,
    ExtractionMode,
    MemoryExtractionSettings,
)

from ..support.faults import Crash, Faults
from ..support.model import by_place, call, say
from ..support.world import ME, Process, World, crashed, lines, opened, require_valid, told
from .process_crashes import next_life

ALL = PageQuery(1_000, ascending=True)
SEARCH = call("conversation_search", query="tea")
DAY = 86_400


async def limit(process: Process, agent: Agent | None = None, **limits: int) -> None:
    budget = Budget(agent_id=agent and agent.id, limits=(BudgetLimit(BudgetPeriod.DAY, **limits),))
    await process.orchestrator.budgets.set(ME, None, budget)


async def used(process: Process) -> BudgetUsage:
    (budget,) = (await process.orchestrator.budgets.list(ME, None, ALL)).items
    return next(item for item in budget.usage if item.period is BudgetPeriod.DAY)


async def spent_by_steps(process: Process) -> tuple[int, int]:
    """Returns the calls and the tokens of all stored steps."""
    steps = (await process.steps.list(ME, StepFilter(), ALL)).items
    return sum(step.attempts for step in steps), sum(step.usage.total_tokens or 0 for step in steps)


async def test_run_stops_at_its_limit_and_the_agent_goes_on_in_the_next_period(world: World, process: Process) -> None:
    agent = await world.agent(process)
    await limit(process, agent, max_requests=2)
    world.model.follow(SEARCH, SEARCH)
    events = await process.send(agent, "Find my tea.")
    run = await process.outcome(agent)
    assert (run.status, run.stop_reason, run.step_count) == (RunStatus.FAILED, StopReason.BUDGET_EXCEEDED, 2)
    assert run.error is not None
    assert (run.error.reason, run.error.metadata["limit"]) == ("BUDGET_EXCEEDED", "requests")
    assert run.error.metadata["retry_after_seconds"] == str(DAY - round(world.clock.monotonic()))
    assert [body for body in told(events) if isinstance(body, ErrorEvent)] == [ErrorEvent(run.error)]
    assert StopEvent(StopReason.BUDGET_EXCEEDED, RunStatus.FAILED) in told(events)
    kept = world.turn(agent)
    require_valid(world.window(agent).messages)
    assert [line for line in lines(kept) if "calls" in line] == [
        'assistant calls conversation_search{"query": "tea"}'
    ] * 2
    with pytest.raises(BudgetExceeded):
        await process.send(agent, "And now?")
    assert world.turn(agent) == kept
    world.clock.advance(DAY)
    world.model.follow(say("In the cupboard."))
    await process.send(agent, "And now?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert world.turn(agent)[: len(kept)] == kept
    assert (await used(process)).requests == 1


async def test_runs_beside_one_another_exceed_a_limit_by_one_step_each(world: World, process: Process) -> None:
    agents = [await world.agent(process) for _ in range(4)]
    await limit(process, max_tokens=111)  # a call uses 110
    world.model.script = by_place(*[SEARCH] * 9)
    await asyncio.gather(*(process.start(agent) for agent in agents))
    await process.idle()
    ends = [await process.outcome(agent) for agent in agents]
    assert {end.stop_reason for end in ends} == {StopReason.BUDGET_EXCEEDED}
    requests, tokens = await spent_by_steps(process)
    assert 2 <= requests <= 1 + len(agents)
    usage = await used(process)
    assert (usage.requests, usage.tokens) == (requests, tokens)


@pytest.mark.full
async def test_replicas_count_together_and_stop_at_the_limit(tmp_path: Path, postgres_url: str) -> None:
    async with opened(tmp_path, postgres_url) as world:
        world.model.script = by_place(*[SEARCH] * 20)
        processes = [world.process(f"instance-{number}") for number in range(2)]
        agents = [await world.agent(processes[0]) for _ in range(6)]
        await limit(processes[0], max_requests=12)
        await asyncio.gather(*(processes[index % 2].start(agent) for index, agent in enumerate(agents)))
        for process in processes:
            await process.idle()
        ends = [await processes[0].outcome(agent) for agent in agents]
        assert {end.stop_reason for end in ends} == {StopReason.BUDGET_EXCEEDED}
        usage = await used(processes[0])
        assert (usage.requests, usage.tokens) == await spent_by_steps(processes[0])
        assert 12 <= usage.requests <= 11 + len(agents)


async def test_crash_neither_loses_a_count_nor_repeats_it(tmp_path: Path, sample: Sample) -> None:
    script = by_place(SEARCH, SEARCH, say("Nothing."))
    (tmp_path / "whole").mkdir()
    async with opened(tmp_path / "whole") as world:
        world.model.script = script
        agent = await world.agent(world.process())
        await limit(world.process(), max_requests=1_000)
        world.faults = Faults()
        await world.process().send(agent)
        points = world.faults.points
    async with opened(tmp_path) as world:
        world.model.script = script
        await limit(world.process(), max_requests=1_000)
        for point in sample(range(points), 16, 2):
            agent = await world.agent(world.process())
            world.faults = Faults()
            world.faults.crashes_at = point
            first = world.process()
            try:
                await first.send(agent)
            except Crash:
                await crashed(first)
            second = await next_life(world)
            for run in (await second.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ALL)).items:
                assert run.stop_reason is StopReason.END_TURN, point
            usage = await used(second)
            assert (usage.requests, usage.tokens) == await spent_by_steps(second), point


async def test_calls_outside_of_runs_count_and_are_refused(world: World, process: Process) -> None:
    agent = await world.agent(
        process, memory_extraction=MemoryExtractionSettings(ExtractionMode.ON_DEMAND), initial_messages=()
    )
    world.model.script = lambda _: say('{"facts": []}')
    for _ in range(4):
        await process.send(agent, "I drink tea.")
    await limit(process, max_requests=3)
    await process.orchestrator.generation.generate(ME, agent.id, "Hi")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=True)
    await process.orchestrator.extractions.extract(ME, agent.id, 1)
    assert (await used(process)).requests == 3
    asked = len(world.model.requests)
    for refused in (
        process.orchestrator.generation.generate(ME, agent.id, "Hi"),
        process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=True),
        process.send(agent),
        process.start(agent),
    ):
        with pytest.raises(BudgetExceeded):
            await refused
    assert len(world.model.requests) == asked


async def test_queued_run_ends_with_the_reason(world: World, process: Process) -> None:
    agent = await world.agent(process)
    await limit(process, max_requests=1)
    world.model.script = by_place(say("Yes."))
    first, second = await process.start(agent, "One"), await process.start(agent, "Two")
    await process.idle()
    ends = [await process.runs.get(ME, run.id) for run in (first, second)]
    assert [end.stop_reason for end in ends] == [StopReason.END_TURN, StopReason.BUDGET_EXCEEDED]
    world.clock.advance(DAY)
    retried = await process.runs.retry(ME, None, second.id)
    await process.idle()
    assert (await process.runs.get(ME, retried.id)).stop_reason is StopReason.END_TURN
