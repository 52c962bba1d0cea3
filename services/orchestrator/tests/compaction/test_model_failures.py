"""Failures of summary models: the agent still answers, nothing is lost, and time is bounded."""

import asyncio
from collections.abc import Callable

import pytest
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.compaction.summarizers import CLIPPED
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ModelUnknown,
    ProviderAuth,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.runs import COMPACTION, StepFilter, StepStatus, StopReason
from mnemesh_testkit.timeouts import scaled
from mnemesh_types.agents import CompactionSettings, ModelSettings
from mnemesh_types.messages import Role
from mnemesh_types.usage import Usage

from ..support.model import USAGE, Held, Item, OneOffer, ScriptedModel, call, say
from ..support.world import ME, Process, World, require_valid
from .conftest import LONG, Speaker, roles, small_agent, summary_of, talk

MODES = ("sliding_window", "all", "self_compact_sliding_window", "self_compact_all")
DIGEST = "No model could be asked for a summary; these are excerpts."
ERRORS: dict[str, Callable[[], Item]] = {
    "down": lambda: ProviderUnavailable("503", provider="scripted", status=503),
    "cut": lambda: ProviderUnavailable("cut", provider="scripted"),
    "limited": lambda: ProviderRateLimited("429", provider="scripted", status=429),
    "auth": lambda: ProviderAuth("401", provider="scripted", status=401),
    "refused": lambda: ProviderRefused("400", provider="scripted", status=400),
    "filtered": lambda: ProviderContentFilter("400", provider="scripted", status=400),
    "late": lambda: ProviderTimeout("late", provider="scripted"),
    "garbage": lambda: ProviderBadAnswer("garbage", provider="scripted"),
    "overflow": lambda: ContextOverflow("too long", provider="scripted", status=400),
    "empty": lambda: say(""),
    "blank": lambda: say(" \n\t "),
    "tool": lambda: call("archival_memory_search", query="x"),
}


@pytest.mark.parametrize(
    ("failure", "mode"),
    [
        pytest.param(failure, mode, marks=() if MODES[number % len(MODES)] == mode else pytest.mark.full)
        for number, failure in enumerate(ERRORS)
        for mode in MODES
    ],
)
async def test_agent_answers_if_summary_model_fails(
    world: World, process: Process, speaker: Speaker, failure: str, mode: str
) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings(mode))
    speaker.summary = lambda request: ERRORS[failure]()
    await process.send(agent, "The code word is zebra-crossing.")
    await talk(process, agent, 6)
    speaker.used = 5_300
    await process.send(agent, "And?")
    speaker.used = 100
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    window = world.window(agent).messages
    require_valid(window)
    assert summary_of(window).startswith(DIGEST)
    assert "zebra-crossing" in summary_of(window)
    await process.send(agent, "Still there?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    found = (await world.recall.search(agent.id, "zebra-crossing")).hits
    assert Role.USER in [hit.message.role for hit in found]


async def test_digest_includes_earlier_notes(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    speaker.summary = lambda request: say("Her name is Ada.")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    speaker.summary = lambda request: ERRORS["down"]()
    for _ in range(3):
        await talk(process, agent, 3)
        result = await process.compactions.compact(
            ME, None, agent.id, agent.default_conversation_id, CompactionSettings("all"), dry_run=False
        )
        assert "Her name is Ada." in result.summary
        assert result.summary.count(DIGEST) == 1
    assert roles(world.window(agent).messages) == ["system", "summary"]


async def test_hanging_model_is_abandoned(world: World, speaker: Speaker) -> None:
    world.call_seconds = 0.01
    process = world.process()
    agent = await small_agent(world, process)
    await talk(process, agent, 6)
    held = Held(say("never"))
    speaker.summary = lambda request: held
    speaker.used = 5_300
    async with asyncio.timeout(scaled(60)):
        await process.send(agent, "And?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert summary_of(world.window(agent).messages).startswith(DIGEST)
    assert len(speaker.summaries) == 1, "an unresponsive model is not called again at once"
    await process.worker.stop()


async def test_self_modes_fall_back_to_transcript(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings("self_compact_sliding_window"))
    await talk(process, agent, 5)
    speaker.summary = lambda request: say("By transcript.") if request.is_verbatim else say("")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    window = world.window(agent).messages
    assert summary_of(window) == "By transcript."
    assert len(window) == 9, "the sliding window decides what leaves"
    assert [request.is_verbatim for request in speaker.summaries] == [False, True]


async def test_empty_sliding_summary_falls_back_to_mode_all(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 5)
    speaker.summary = lambda request: say("" if len(speaker.summaries) == 1 else "Of all.")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    assert roles(world.window(agent).messages) == ["system", "summary"]
    assert summary_of(world.window(agent).messages) == "Of all."


async def test_transcript_that_overflows_the_model_is_read_in_parts(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 7)
    lengths: list[int] = []

    def refuse_long(request: LlmRequest) -> Item:
        lengths.append(len(request.messages[-1].text))
        if lengths[-1] > 2_200:
            return ContextOverflow("too long", provider="scripted", status=400)
        return say(f"In short, {len(lengths)}.")

    speaker.summary = refuse_long
    settings = CompactionSettings("all")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, settings, dry_run=False)
    assert summary_of(world.window(agent).messages) == f"In short, {len(lengths)}."
    assert lengths[0] > 2_200 >= max(lengths[1:])
    texts = [request.messages[-1].text for request in speaker.summaries[1:]]
    assert texts[0].startswith("user: 0. ")
    assert texts[1].startswith("earlier notes: In short, 2.\n")
    assert texts[-1].endswith("assistant: Yes.")
    assert "characters are left out here" not in "".join(texts)


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_long_summary_is_cut(world: World, process: Process, speaker: Speaker, kind: AgentType) -> None:
    agent = await small_agent(world, process, kind)
    speaker.summary = lambda request: say("blah " * 40_000)
    for number in range(40):
        await process.send(agent, f"{number}. {LONG * 2}")
        assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    window = world.window(agent).messages
    summary = summary_of(window)
    assert summary.endswith(CLIPPED)
    assert len(summary) / 4 < 6_000 / 8 / 0.9 + 20, "the estimate may be corrected by a tenth"
    assert len(speaker.summaries) < 20


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ("anthropic/claude-opus-4-5", ["anthropic/claude-haiku-5-5", "anthropic/claude-opus-4-5"]),
        ("anthropic/claude-haiku-5-5", ["anthropic/claude-haiku-5-5"]),
        ("openai/gpt-5", ["openai/gpt-6-luna", "openai/gpt-5"]),
        ("google_ai/gemini-2.5-pro", ["google_ai/gemini-2.5-flash", "google_ai/gemini-2.5-pro"]),
        ("lmstudio_openai/qwen", ["lmstudio_openai/qwen"]),
        ("scripted/one", ["scripted/one"]),
    ],
)
async def test_default_summary_model_of_provider_precedes_own_model(
    world: World, process: Process, speaker: Speaker, own: str, asked: list[str]
) -> None:
    agent = await small_agent(world, process, model=own)
    await talk(process, agent, 5)
    speaker.summary = lambda request: ERRORS["down"]()
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    assert [request.model.handle for request in speaker.summaries] == asked


async def test_own_model_replaces_unknown_summary_model(
    world: World, process: Process, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings("all", model="anthropic/two"))
    await talk(process, agent, 5)
    known = OneOffer.resolve

    def without_it(offer: OneOffer, handle: str) -> tuple[ModelInfo, ScriptedModel]:
        if handle == "anthropic/two":
            raise ModelUnknown("Nobody serves it any more.", model=handle)
        return known(offer, handle)

    monkeypatch.setattr(OneOffer, "resolve", without_it)
    speaker.used = 5_300
    await process.send(agent, "And?")
    assert summary_of(world.window(agent).messages) == "They spoke of work."
    assert [request.model.handle for request in speaker.summaries] == ["scripted/one"]


async def test_configured_summary_model_has_its_settings(world: World, process: Process, speaker: Speaker) -> None:
    settings = CompactionSettings("all", model="anthropic/two", model_settings=ModelSettings(temperature=0.1))
    agent = await small_agent(world, process, compaction_settings=settings)
    await talk(process, agent, 5)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    request = speaker.summaries[0]
    assert (request.model.handle, request.settings.temperature, request.tools) == ("anthropic/two", 0.1, ())


async def test_window_is_usable_while_all_models_are_down(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 6)
    speaker.summary = lambda request: ERRORS["down"]()
    speaker.turn = lambda request: ProviderUnavailable("503", provider="scripted", status=503)
    speaker.used = 5_300
    await process.send(agent, LONG * 20)
    assert (await process.outcome(agent)).stop_reason is StopReason.LLM_API_ERROR
    require_valid(world.window(agent).messages)
    speaker.turn = None
    await process.send(agent, "Back?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_unavailable_recall_after_step_delays_compaction(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 6)
    speaker.used = 5_300
    world.faults.unavailable = {"recall.replace_context": 3}
    await process.send(agent, "And?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert summary_of(world.window(agent).messages) == "They spoke of work."
    assert len(world.waits) == 3
    assert len(speaker.summaries) == 1


async def test_each_call_of_a_summary_model_is_a_step_with_trace_and_usage(
    world: World, process: Process, speaker: Speaker
) -> None:
    failed = ProviderUnavailable("503", provider="scripted", status=503)
    failed.usage = Usage(3, None, 3)
    answers: list[Item] = [failed, say("They spoke of work.")]
    handle = "openai/summaries"
    agent = await small_agent(world, process, compaction_settings=CompactionSettings("all", model=handle))
    await talk(process, agent, 6)
    speaker.summary = lambda request: answers.pop(0)
    speaker.used = 5_300
    await process.send(agent, "And?", include_compaction_events=True)
    run = await process.outcome(agent)
    found = await process.steps.list(ME, StepFilter(run_id=run.id), PageQuery(50, ascending=True))
    # The clock of the test stands still, so the order of the list does not tell the order of the calls.
    summaries = sorted((step for step in found.items if step.origin == COMPACTION), key=lambda step: step.model)
    assert [(step.model, step.status, step.usage) for step in summaries] == [
        (handle, StepStatus.FAILED, failed.usage),
        ("scripted/one", StepStatus.SUCCESS, USAGE),
    ]
    (answered,) = (step for step in found.items if not step.origin)
    assert (run.step_count, run.usage) == (1, answered.usage + failed.usage + USAGE)
    for step in found.items:
        assert (await process.steps.trace(ME, step.id)).step_id == step.id
    assert "503" in (await process.steps.trace(ME, summaries[0].id)).response


async def test_compaction_on_demand_returns_the_tokens_of_the_summary(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 4)
    result = await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=True)
    assert result.usage == USAGE
