"""Model calls without a usable answer: each leaves a step, a trace, and its usage."""

import asyncio
import json

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.errors import ProviderAuth, ProviderBadAnswer, ProviderError, ProviderUnavailable
from mnemesh_orchestrator.llm.port import FinishReason, LlmAnswer
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import StepStarted
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, Step, StepFilter, StepStatus, StopReason
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.usage import Usage

from ..support.model import USAGE, Cut, Held, Item, call, say
from ..support.world import ME, Process, World

NUMBER = ResponseFormat("json_schema", "n", '{"type":"object","properties":{"n":{"type":"integer"}}}')


async def steps_of(process: Process, agent: Agent) -> list[Step]:
    """Returns the agent's steps, of which each has a trace that can be read."""
    found = await process.steps.list(ME, StepFilter(agent_id=agent.id), PageQuery(50, ascending=True))
    for step in found.items:
        trace = await process.steps.trace(ME, step.id)
        json.loads(trace.request or "{}")
        json.loads(trace.response or "{}")
        assert (await process.steps.get(ME, step.id)) == step
    return sorted(found.items, key=lambda step: (step.created_at, step.number))


def with_usage(error: ProviderError, usage: Usage, body: str) -> ProviderError:
    error.usage, error.response_body = usage, body
    return error


@pytest.mark.parametrize(
    ("script", "reason", "usage", "attempts"),
    [
        ([ProviderAuth("No.", provider="scripted", status=401)], "PROVIDER_AUTH", Usage(), 1),
        ([Cut(say("Hel")), Cut(say("Hel")), Cut(say("Hel"))], "PROVIDER_UNAVAILABLE", Usage(), 3),
        (
            [with_usage(ProviderBadAnswer("Odd.", provider="scripted"), USAGE, '{"id": "x"}')] * 2,
            "PROVIDER_BAD_ANSWER",
            USAGE + USAGE,
            2,
        ),
        ([RuntimeError("a defect")], "INTERNAL", Usage(), 1),
    ],
    ids=["refused", "interrupted", "malformed", "defect"],
)
async def test_failed_call_leaves_step_trace_and_usage(
    world: World, process: Process, script: list[Item], reason: str, usage: Usage, attempts: int
) -> None:
    agent = await world.agent(process)
    world.model.follow(*script)
    events = await process.send(agent)
    announced = {event.step_id for event in events if isinstance(event.body, StepStarted)}
    (step,) = await steps_of(process, agent)
    assert announced == {step.id}
    assert (step.status, step.usage, step.attempts) == (StepStatus.FAILED, usage, attempts)
    run = await process.outcome(agent)
    assert step.error == run.error is not None
    assert step.error.reason == reason
    assert (run.usage, run.step_count, step.stop_reason) == (usage, 1, run.stop_reason)
    response = json.loads((await process.steps.trace(ME, step.id)).response)
    assert response["error"]["reason"] == reason
    assert response.get("partial_response") == ({"id": "x"} if usage != Usage() else None)


async def test_tokens_of_answers_in_the_wrong_format_are_counted(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(*[say("no JSON")] * 3)
    await process.send(agent, response_format=NUMBER)
    (step,) = await steps_of(process, agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, step.attempts) == (StopReason.INVALID_LLM_RESPONSE, 3)
    assert run.usage == step.usage == USAGE + USAGE + USAGE


async def test_tokens_of_an_empty_answer_and_of_an_answer_before_success_are_counted(
    world: World, process: Process
) -> None:
    agent = await world.agent(process)
    broken = with_usage(ProviderUnavailable("Cut.", provider="scripted"), Usage(prompt_tokens=7), "{}")
    world.model.follow(broken, say("Hello."))
    await process.send(agent)
    (step,) = await steps_of(process, agent)
    assert (step.status, step.attempts, step.usage) == (StepStatus.SUCCESS, 2, USAGE + broken.usage)
    world.model.follow(*[LlmAnswer((), (), FinishReason.STOP, USAGE)] * 2)
    await process.send(agent)
    (failed,) = [step for step in await steps_of(process, agent) if step.status is StepStatus.FAILED]
    assert (failed.attempts, failed.usage) == (2, USAGE + USAGE)


async def test_failure_of_a_later_step_keeps_the_earlier_one(world: World, process: Process) -> None:
    agent = await world.agent(process)
    error = ProviderAuth("No.", provider="scripted", status=401)
    world.model.follow(call("archival_memory_insert", content="x"), error)
    await process.send(agent)
    first, second = await steps_of(process, agent)
    assert [(first.number, first.status), (second.number, second.status)] == [
        (1, StepStatus.SUCCESS),
        (2, StepStatus.FAILED),
    ]
    assert (await process.outcome(agent)).step_count == 2


async def test_cancelled_call_leaves_a_cancelled_step(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Too late."))
    world.model.follow(held)
    run = await process.start(agent)
    async with asyncio.timeout(scaled(60)):
        await held.asked.wait()
    await process.runs.cancel(ME, RunFilter(), [run.id])
    (step,) = await steps_of(process, agent)
    assert (step.status, step.stop_reason, step.error) == (StepStatus.CANCELLED, StopReason.CANCELLED, None)
    assert (await process.outcome(agent)).status is RunStatus.CANCELLED
    world.model.follow(say("Hello again."))
    await process.send(agent)
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED
