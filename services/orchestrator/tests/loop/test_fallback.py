"""An unavailable model: its fallback runs the rest of the turn, and every record names the model that answered."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ModelUnknown,
    ProviderAuth,
    ProviderError,
    ProviderModelUnknown,
    ProviderPaymentRequired,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.events import StepStarted
from mnemesh_orchestrator.model.runs import RunStatus, StepFilter, StopReason
from mnemesh_types.agents import ModelSettings

from ..support.faults import Crash, Faults
from ..support.model import HANDLE, Cut, Item, by_place, call, say
from ..support.world import ME, Process, World, crashed, lines, opened, require_valid

SPARE = "anthropic/spare"
SETTINGS = ModelSettings(fallback_model=SPARE, provider_options='{"seed": 1}')
AWAY = ProviderUnavailable("scripted answered 503.", provider="scripted", status=503)


def while_away(failure: Item, *answers: LlmAnswer) -> Any:
    """The main model always fails; the other one answers by position."""
    spare = by_place(*answers)

    def choose(request: LlmRequest) -> Item:
        return failure if request.model.handle == HANDLE else spare(request)

    return choose


async def steps(process: Process, agent: Agent) -> list[tuple[str, str, int]]:
    run = await process.outcome(agent)
    page = await process.steps.list(ME, StepFilter(run_id=run.id), PageQuery(10, ascending=True))
    ordered = sorted(page.items, key=lambda step: step.number)
    return [(step.model, step.provider, step.attempts) for step in ordered]


@pytest.mark.parametrize(
    "failure",
    [
        AWAY,
        ProviderRateLimited("Slow down.", provider="scripted", status=429),
        ProviderTimeout("Too slow.", provider="scripted"),
        ProviderModelUnknown("There is no such model.", provider="scripted", status=404),
    ],
)
async def test_fallback_continues_and_is_recorded(world: World, process: Process, failure: ProviderError) -> None:
    agent = await world.agent(process, model_settings=SETTINGS)
    world.model.script = while_away(failure, call("archival_memory_insert", content="x"), say("Done."))
    events = await process.send(agent)
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED
    assert lines(world.turn(agent))[-1] == "assistant text: Done."
    assert [request.model.handle for request in world.model.requests] == [HANDLE, SPARE, SPARE]
    starts = [event.body for event in events if isinstance(event.body, StepStarted)]
    assert starts == [StepStarted(1, 1), StepStarted(1, 2), StepStarted(2, 1)], "a step asked again is announced"
    assert await steps(process, agent) == [(SPARE, "anthropic", 2), (SPARE, "anthropic", 1)]
    assert {message.model for message in world.turn(agent) if message.role == "assistant"} == {SPARE}
    world.model.script = by_place(say("Back."))
    await process.send(agent)
    assert world.model.last.model.handle == HANDLE, "the next turn tries the model itself again"


async def test_fallback_replaces_a_model_whose_answers_are_always_interrupted(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=SETTINGS)
    world.model.script = while_away(Cut(say("Hello, wor")), say("Hello."))
    events = await process.send(agent)
    attempts = [event.body.attempt for event in events if isinstance(event.body, StepStarted)]
    assert attempts == [1, 2, 3, 4]
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Hello."]


async def test_provider_options_are_not_sent_to_another_provider(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=replace(SETTINGS, context_window=30_000, temperature=0.5))
    world.model.script = while_away(AWAY, say("Done."))
    await process.send(agent)
    main, spare = (request.settings for request in world.model.requests)
    assert (main.provider_options, spare.provider_options) == ('{"seed": 1}', None)
    assert (main.context_window, spare.context_window, spare.temperature) == (30_000, 30_000, 0.5)


@pytest.mark.parametrize(
    "failure",
    [
        ProviderAuth("scripted answered 401.", provider="scripted", status=401),
        ProviderPaymentRequired("No credit.", provider="scripted", status=402),
        ProviderRefused("scripted answered 400.", provider="scripted", status=400),
        ContextOverflow("Too long.", provider="scripted", status=400),
    ],
)
async def test_errors_that_need_action_do_not_use_the_fallback(
    world: World, process: Process, failure: ProviderError
) -> None:
    agent = await world.agent(process, model_settings=SETTINGS)
    world.model.script = while_away(failure, say("never"))
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.error is not None
    assert run.error.reason == failure.reason
    assert SPARE not in {request.model.handle for request in world.model.requests}


async def test_unavailable_fallback_fails_the_run(world: World, process: Process) -> None:
    agent = await world.agent(process, model_settings=SETTINGS)
    world.model.script = lambda _: AWAY
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.stop_reason, len(world.model.requests)) == (StopReason.LLM_API_ERROR, 2)
    assert len(world.turn(agent)) == 0


async def test_unknown_fallback_is_refused_in_settings(world: World, process: Process) -> None:
    unknown = ModelSettings(fallback_model="unserved/x")
    with pytest.raises(ModelUnknown):
        await process.lifecycle.create(ME, None, AgentDraft(AgentType.LETTA_V1, model_settings=unknown))
    agent = await world.agent(process)
    with pytest.raises(ModelUnknown):
        await process.agents.update(ME, None, agent.id, {"model_settings": unknown})
    # One that was served when it was named may be gone by now: the model itself goes on.
    stored = replace(agent, model_settings=unknown)
    await process.stores.agents.update(None, ME.organization_id, agent.id, lambda _: stored)
    world.model.follow(say("Fine."))
    await process.send(agent)
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("point", range(2, 28, 4))
async def test_turn_with_the_fallback_survives_a_crash(tmp_path: Path, point: int) -> None:
    async with opened(tmp_path) as world:
        process = world.process()
        agent = await world.agent(process, model_settings=SETTINGS)
        world.model.script = while_away(AWAY, call("archival_memory_insert", content="x"), say("Done."))
        world.faults = faults = Faults()
        faults.crashes_at = point
        crashing = world.process()
        with suppress(Crash):
            await crashing.start(agent)
        await crashed(crashing)
        world.faults = Faults()
        if not faults.has_crashed:
            return
        second = world.process()
        await second.recover()
        if not world.turn(agent):  # it crashed before the run was stored
            return
        require_valid(world.window(agent).messages)
        assert lines(world.turn(agent))[-1] == "assistant text: Done."
        assert {message.model for message in world.turn(agent) if message.role == "assistant"} == {SPARE}
        assert {model for model, _, _ in await steps(second, agent)} == {SPARE}
