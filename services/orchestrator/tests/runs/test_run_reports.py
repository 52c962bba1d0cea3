"""Reports of ended runs for operators: one log line and the metrics of each."""

import asyncio
from typing import Any

import pytest
from mnemesh_orchestrator.llm.errors import ProviderUnavailable
from mnemesh_orchestrator.loop.services import MAX_MODELS, TurnMetrics
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.runs import Run, RunFilter
from mnemesh_orchestrator.store.run_pools import QueueCounts
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.agents import ModelSettings
from mnemesh_types.usage import Usage
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from ..support.faults import Faults
from ..support.model import Held, call, say
from ..support.world import ME, Process, World

DOWN = ProviderUnavailable("scripted answered 503.", provider="scripted", status=503)


def ended(lines: list[Any], run: Run) -> dict[str, Any]:
    """Returns the only line about the end of a run."""
    (line,) = (line for line in lines if line["event"] == "run_ended" and line["run_id"] == run.id)
    assert (line["agent_id"], line["conversation_id"]) == (run.agent_id, run.conversation_id)
    return dict(line)


async def test_each_ended_run_is_one_log_line(world: World, process: Process) -> None:
    agent = await world.agent(process)
    with capture_logs(processors=[merge_contextvars]) as lines:
        world.model.follow(call("archival_memory_insert", content="x"), say("Done."))
        await process.send(agent)
        good = await process.outcome(agent)
        world.model.follow(DOWN)
        await process.send(agent)
        bad = await process.outcome(agent)
    line = ended(lines, good)
    assert (line["status"], line["reason"], line["steps"], line["total_tokens"]) == ("completed", "end_turn", 2, 220)
    assert (line["ms"], line["log_level"]) == (good.total_ms, "info")
    line = ended(lines, bad)
    assert (line["status"], line["reason"], line["error"]) == ("failed", "llm_api_error", "PROVIDER_UNAVAILABLE")
    assert line["log_level"] == "warning"


async def test_lines_of_a_run_name_it_and_lines_after_it_do_not(world: World, process: Process) -> None:
    agent = await world.agent(process)
    broken = ProviderUnavailable("The connection broke.", provider="scripted")
    world.model.follow(broken, say("Hello."))
    with capture_logs(processors=[merge_contextvars]) as lines:
        await process.send(agent)
        run = await process.outcome(agent)
        assert "run_id" not in merge_contextvars(None, "", {})
    (line,) = (line for line in lines if line["event"] == "answer_interrupted")
    assert (line["run_id"], line["agent_id"]) == (run.id, agent.id)


async def test_runs_models_tools_and_takeovers_are_counted(world: World, process: Process) -> None:
    agent = await world.agent(process)
    metrics = process.orchestrator.metrics
    world.model.follow(call("archival_memory_insert", content="x"), say("Done."))
    await process.send(agent)
    world.model.follow(DOWN)
    await process.send(agent)
    assert metrics.runs.value("completed", "end_turn") == metrics.runs.value("failed", "llm_api_error") == 1
    assert metrics.run_seconds.count("completed") == 1
    labels = ("scripted", "one")
    assert metrics.provider_seconds.count(*labels, "OK") == 2
    assert metrics.provider_seconds.count(*labels, "PROVIDER_UNAVAILABLE") == 1
    assert (metrics.provider_tokens.value(*labels, "prompt"), metrics.provider_tokens.value(*labels, "completion")) == (
        200,
        20,
    )
    assert metrics.tool_runs.value("archival_memory_insert", "success") == 1
    assert metrics.takeovers.value() == 0


async def test_resumed_run_and_run_that_never_started_are_counted(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held)
    running, waiting = await process.start(agent, "First"), await process.start(agent, "Second")
    async with asyncio.timeout(scaled(60)):
        await held.asked.wait()
    counts = QueueCounts(world.database)
    await counts.refresh()
    assert (process.worker.active_runs, counts.runs_waiting, counts.approvals_waiting) == (1, 1, 0)
    with capture_logs() as lines:
        await process.runs.cancel(ME, RunFilter(), [waiting.id])
    assert ended(lines, waiting)["reason"] == "cancelled"
    await process.worker.stop()
    world.faults = Faults()
    second = world.process()
    world.model.follow(say("One."))
    await second.recover()
    assert (await second.runs.get(ME, running.id)).status == "completed"
    assert second.orchestrator.metrics.takeovers.value() == 1
    assert process.orchestrator.metrics.runs.value("cancelled", "cancelled") == 1


@pytest.mark.parametrize("count", [MAX_MODELS + 50])
def test_labels_of_models_are_bounded(count: int) -> None:
    metrics = TurnMetrics()
    for number in range(count):
        info = ModelInfo(f"p{number}/m", f"p{number}", "m", "openai_chat", ModelSettings(context_window=1))
        metrics.model_called(info, 0.1, Usage(1, 1, 2))
    assert metrics.provider_seconds.count("p0", "m", "OK") == 1
    assert metrics.provider_seconds.count("other", "other", "OK") == count - MAX_MODELS
