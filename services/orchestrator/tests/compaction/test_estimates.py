"""Token estimates, corrected by the counts of providers for each agent and model, in every process."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from mnemesh_orchestrator.compaction.planner import Corrections, TokenEstimator
from mnemesh_orchestrator.model.agents import Agent, AgentType, Correction
from mnemesh_orchestrator.usecases.context_windows import ContextWindowReport

from ..support.world import ME, Process, World
from .conftest import LONG, SMALL, Speaker, is_summary_request, small_agent, talk

WIDE = replace(SMALL, context_window=60_000)
NOW = datetime(2026, 1, 20, tzinfo=UTC)


def make_agent(id_: str = "agent", *corrections: Correction) -> Agent:
    return Agent(id_, "org", id_, AgentType.LETTA_V1, "", "m", NOW, NOW, "conv", corrections=corrections)


def test_correction_follows_provider_within_bounds() -> None:
    corrections, agent = Corrections(), make_agent()
    assert corrections.of(agent, "m") == Correction("m", factor=1, answers=0)
    corrections.update(agent, "m", 1_000, 1_400)
    assert corrections.of(agent, "m").factor == pytest.approx(1.2)
    corrections.update(agent, "m", 1_000, 1_400)
    assert corrections.of(agent, "m").factor == pytest.approx(1.3)
    assert corrections.of(make_agent("other"), "m").factor == 1
    assert corrections.of(agent, "other").factor == 1
    for _ in range(20):
        corrections.update(agent, "m", 1_000, 90_000)
    assert corrections.of(agent, "m").factor == 3
    for _ in range(20):
        corrections.update(agent, "m", 1_000, 1)
    assert corrections.of(agent, "m").factor == 0.9
    assert corrections.of(agent, "m").answers == 42
    new = make_agent("new")
    assert corrections.update(new, "m", 100, 200) is None
    assert corrections.update(new, "m", 1_000, 0) is None
    assert corrections.of(new, "m").factor == 1, "short requests and missing counts change nothing"


def test_error_is_that_of_corrected_estimate() -> None:
    estimator, agent = TokenEstimator(), make_agent()
    assert estimator.mean_error == 0
    for reported, error, mean in ((1_250, -0.2, 0.2), (1_125, 0.0, 0.1), (900, 0.25, 0.15)):
        correction = estimator.update_correction(agent, "m", 1_000, reported)
        assert correction is not None
        assert correction.error == pytest.approx(error)
        assert estimator.mean_error == pytest.approx(mean)
    for _ in range(2_000):
        estimator.update_correction(agent, "m", 1_000, 1_000)
    assert estimator.mean_error < 0.001, "old errors no longer count"


def test_correction_from_more_answers_takes_precedence() -> None:
    corrections = Corrections()
    stored = make_agent("agent", Correction("m", 1.5, 0.1, 7), Correction("n", 2.0, 0.0, 1))
    assert corrections.of(stored, "m").factor == 1.5
    correction = corrections.update(stored, "m", 1_000, 1_500)
    assert correction == Correction("m", 1.5, 0.0, 8)
    assert corrections.of(stored, "m") == correction, "the stored record is from the start of the run"
    later = make_agent("agent", Correction("m", 2.5, 0.1, 9))
    assert corrections.of(later, "m").factor == 2.5, "another process has seen more answers"
    assert corrections.of(stored, "n").factor == 2.0


async def report(process: Process, agent: Agent) -> ContextWindowReport:
    conversation = await process.windows.resolve(ME, agent.id, agent.default_conversation_id)
    return await process.windows.report(ME, *conversation, process.agents.effective_settings(*conversation))


async def test_count_of_provider_corrects_reported_size_of_window(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=WIDE)
    await process.send(agent, LONG)
    before = (await report(process, agent)).total_tokens
    for _ in range(12):
        speaker.used = (await report(process, agent)).total_tokens * 2
        await process.send(agent, "And?")
    after = await report(process, agent)
    assert after.total_tokens > before * 2.5
    assert after.correction.factor == 3
    assert after.correction.answers == 13


async def test_correction_survives_restart_and_is_shared_by_processes(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=WIDE)
    await talk(process, agent, 2)
    other = world.process("instance-2")
    assert (await report(other, agent)).correction.answers == 2
    for _ in range(6):
        speaker.used = (await report(process, agent)).total_tokens * 2
        await process.send(agent, "And?")
    known = await report(process, agent)
    assert known.correction.factor > 1.5
    for witness in (other, world.process()):
        seen = await report(witness, agent)
        assert (seen.correction, seen.total_tokens) == (known.correction, known.total_tokens)
    speaker.used = known.total_tokens
    await other.send(agent, "And?")
    assert (await report(process, agent)).correction.answers == known.correction.answers + 1


async def test_correction_after_restart_keeps_requests_small(world: World, process: Process, speaker: Speaker) -> None:
    """The provider counts twice the estimate, so a request that fits only by the estimate must be compacted."""
    agent = await small_agent(world, process, model_settings=replace(SMALL, context_window=12_000))
    for _ in range(6):
        speaker.used = 2 * await plain(process, agent)
        await process.send(agent, LONG * 6)
    assert speaker.summaries == []
    again = world.process()
    await again.send(agent, "x" * 4 * (6_500 - await plain(again, agent)))
    kinds = ["summary" if is_summary_request(request) else "turn" for request in world.model.requests]
    assert kinds == [*["turn"] * 6, "summary", "turn"]


async def plain(process: Process, agent: Agent) -> int:
    """Returns the uncorrected estimate of the window."""
    seen = await report(process, agent)
    return int(seen.total_tokens / seen.correction.factor)


async def test_corrections_of_last_used_models_are_stored(world: World, process: Process, speaker: Speaker) -> None:
    speaker.used = 400
    agent = await small_agent(world, process, model_settings=WIDE)
    for number in range(10):
        await process.send(agent, LONG, override_model=f"scripted/{number}")
    stored = (await process.stores.agents.get(ME.organization_id, agent.id)).corrections
    assert [item.model for item in stored] == [f"scripted/{number}" for number in range(2, 10)]
    await process.send(agent, LONG, override_model="scripted/3")
    stored = (await process.stores.agents.get(ME.organization_id, agent.id)).corrections
    assert (stored[-1].model, stored[-1].answers, len(stored)) == ("scripted/3", 2, 8)
