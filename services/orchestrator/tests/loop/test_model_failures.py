"""A model that refuses, stops early, or answers invalidly: a precise stop reason, and nothing of the step is stored."""

import pytest
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderAuth,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderError,
    ProviderPaymentRequired,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)
from mnemesh_orchestrator.model.events import ErrorEvent, StepStarted
from mnemesh_orchestrator.model.runs import RunStatus, StopReason

from ..support.model import Cut, Item, call, say, together
from ..support.world import ME, Process, World, deltas, kinds, lines, require_valid, told


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ProviderAuth("scripted answered 401.", provider="scripted", status=401), StopReason.LLM_API_ERROR),
        (ProviderPaymentRequired("No credit.", provider="scripted", status=402), StopReason.INSUFFICIENT_CREDITS),
        (ProviderRefused("scripted answered 400.", provider="scripted", status=400), StopReason.LLM_API_ERROR),
        (ProviderContentFilter("Filtered.", provider="scripted", status=400), StopReason.CONTENT_FILTER),
        (ContextOverflow("Too long.", provider="scripted", status=400), StopReason.CONTEXT_WINDOW_OVERFLOW),
        (ProviderRateLimited("Slow down.", provider="scripted", status=429), StopReason.LLM_API_ERROR),
        (ProviderUnavailable("scripted answered 503.", provider="scripted", status=503), StopReason.LLM_API_ERROR),
        (ProviderTimeout("Too slow.", provider="scripted"), StopReason.LLM_API_ERROR),
        (ProviderBadAnswer("No JSON.", provider="scripted"), StopReason.INVALID_LLM_RESPONSE),
        (RuntimeError("a secret detail"), StopReason.ERROR),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_each_failure_has_its_stop_reason(
    world: World, process: Process, error: Exception, reason: StopReason
) -> None:
    agent = await world.agent(process)
    before = world.window(agent)
    world.model.follow(error, error)
    events = await process.send(agent)
    assert kinds(events) == ["ErrorEvent", "StopEvent", "UsageEvent"]
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (reason, RunStatus.FAILED)
    failed = told(events)[0]
    assert isinstance(failed, ErrorEvent)
    assert failed.error == run.error
    if isinstance(error, ProviderError):
        assert (failed.error.reason, failed.error.message) == (error.reason, error.message)
    else:
        assert (failed.error.reason, "secret" in failed.error.message) == ("INTERNAL", False)
    assert world.window(agent).messages == before.messages


async def test_input_of_a_failed_run_can_be_retried(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(*[ProviderBadAnswer("No JSON.", provider="scripted")] * 2, say("Hello yourself."))
    await process.send(agent, "Hello")
    failed = await process.outcome(agent)
    world.clock.advance(1)
    again = await process.runs.retry(ME, None, failed.id)
    await process.follow(again)
    assert again.id != failed.id
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Hello yourself."]


@pytest.mark.parametrize("unusable", [ProviderBadAnswer("No JSON.", provider="scripted"), say("")])
async def test_unusable_answer_is_requested_again_once(world: World, process: Process, unusable: Item) -> None:
    agent = await world.agent(process)
    world.model.follow(unusable, say("Hello."))
    events = await process.send(agent, stream_tokens=True)
    assert [event.body.attempt for event in events if isinstance(event.body, StepStarted)] == [1, 2]
    assert lines(world.turn(agent))[-1] == "assistant text: Hello."
    spent = 110 if isinstance(unusable, Exception) else 220
    assert (await process.outcome(agent)).usage.total_tokens == spent


async def test_committed_steps_are_kept_after_a_failure(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(
        call("archival_memory_insert", content="x"), ProviderRefused("No.", provider="scripted", status=400)
    )
    events = await process.send(agent)
    assert kinds(events) == ["tool_call", "tool_return", "ErrorEvent", "StopEvent", "UsageEvent"]
    assert lines(world.turn(agent))[-1] == "tool success of archival_memory_insert: "
    world.model.follow(say("Where were we?"))
    await process.send(agent)
    assert lines(world.turn(agent))[-1] == "assistant text: Where were we?"


async def test_interrupted_answer_is_requested_again_and_announced(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(Cut(say("Hello, wor")), say("Hello, world."))
    events = await process.send(agent, stream_tokens=True)
    starts = [(event.body.number, event.body.attempt) for event in events if isinstance(event.body, StepStarted)]
    assert starts == [(1, 1), (1, 2)]
    place = next(i for i, event in enumerate(events) if event.body == StepStarted(1, 2))
    assert "".join(piece.text for piece in deltas(events[:place])) == "Hello, wor"
    second = deltas(events[place:])
    assert second[0].offset == 0
    assert "".join(piece.text for piece in second) == "Hello, world."
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Hello, world."]
    assert (await process.outcome(agent)).usage.total_tokens == 110


async def test_answer_that_is_always_interrupted_fails_the_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(*[Cut(say("Hello"))] * 3)
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, len(world.model.requests)) == (StopReason.LLM_API_ERROR, 3)
    assert len(world.turn(agent)) == 0


async def test_refusal_of_the_provider_is_not_retried(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(ProviderUnavailable("scripted answered 503.", provider="scripted", status=503))
    await process.send(agent)
    assert len(world.model.requests) == 1


async def test_model_that_is_no_longer_served_fails_the_run_and_not_the_agent(world: World, process: Process) -> None:
    agent = await world.agent(process)
    changed = await process.stores.agents.get(ME.organization_id, agent.id)
    from dataclasses import replace

    await process.stores.agents.update(
        None, ME.organization_id, changed.id, lambda agent: replace(agent, model="gone/model")
    )
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.error is not None
    assert (run.stop_reason, run.error.reason) == (StopReason.ERROR, "MODEL_UNKNOWN")
    assert (await process.agents.get(ME, agent.id)).model == "gone/model"


@pytest.mark.parametrize("breaks", [1, 2])
async def test_call_of_an_answer_that_broke_off_and_came_again_runs_once(
    world: World, process: Process, breaks: int
) -> None:
    world.tools.add("launch", "launched")
    agent = await world.agent(process, tool_names=("launch",))
    answer = together(call("launch"), call("archival_memory_insert", content="tea"))
    world.model.follow(*[Cut(answer)] * breaks, answer, say("Done."))
    await process.send(agent)
    assert len(world.tools.executed) == 1
    assert await world.archival.texts(agent.id) == ["tea"]
    require_valid(world.window(agent).messages)
