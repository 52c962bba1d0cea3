"""Triggers of compaction: estimates, counts of the provider, and overflows."""

from dataclasses import replace

import pytest
from mnemesh_orchestrator.compaction.planner import trigger_tokens
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderRefused
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import AgentType, PromptPolicy
from mnemesh_orchestrator.model.events import CompactionEvent, MessageEvent
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_types.agents import CompactionSettings
from mnemesh_types.messages import Role

from ..support.model import Item, call, say
from ..support.world import ME, Process, World, kinds, require_valid, told
from .conftest import LONG, Speaker, is_summary_request, roles, small_agent, summary_of, talk

BOTH = pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])


@BOTH
async def test_long_conversation_continues_in_small_window(
    world: World, process: Process, speaker: Speaker, kind: AgentType
) -> None:
    agent = await small_agent(world, process, kind)
    for number in range(60):
        events = await process.send(agent, f"{number}. {LONG * 2}")
        assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN, number
        assert "CompactionEvent" not in kinds(events), "the client did not ask for compaction events"
        require_valid(world.window(agent).messages)
    window = world.window(agent).messages
    assert 1 < len(speaker.summaries) < 15
    assert roles(window)[:2] == ["system", "summary"]
    assert roles(window).count("summary") == 1
    assert summary_of(window) == "They spoke of work."
    texts = [row.text for row in world.recall.rows[agent.id] if row.role is Role.USER and LONG in row.text]
    assert len(texts) == 60, "evicted messages are in recall"
    assert len([row for row in world.recall.rows[agent.id] if row.role is Role.SUMMARY]) == len(speaker.summaries)


@BOTH
async def test_no_request_exceeds_the_window(world: World, process: Process, speaker: Speaker, kind: AgentType) -> None:
    agent = await small_agent(world, process, kind)
    await talk(process, agent, 30)
    # The estimate for the scripted provider is a quarter of the bytes.
    for request in world.model.requests:
        size = sum(len(message.text.encode()) for message in request.messages)
        assert size / 4 < 6_000 * 0.98


async def test_turn_without_compaction_makes_no_extra_call(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 2, "Hello")
    world.faults.calls.clear()
    await process.send(agent, "Hello")
    assert [name for name in world.faults.calls if name.startswith("recall.")] == [
        "recall.get_context",
        "recall.commit_step",
    ]
    assert len([name for name in world.faults.calls if name == "runs.write"]) == 0


@BOTH
async def test_count_of_provider_starts_compaction_at_end_of_turn(
    world: World, process: Process, speaker: Speaker, kind: AgentType
) -> None:
    agent = await small_agent(world, process, kind)
    await talk(process, agent, 6)
    assert speaker.summaries == []
    speaker.used = 5_300  # of (6000 - 2 %) * 0.9 = 5292
    events = await process.send(agent, "And now?", include_compaction_events=True)
    assert len(speaker.summaries) == 1
    assert summary_of(world.window(agent).messages) == "They spoke of work."
    assert [kind for kind in kinds(events) if kind not in ("reasoning", "tool_call", "tool_return")] == [
        "assistant",
        "CompactionEvent",
        "summary",
        "StopEvent",
        "UsageEvent",
    ]
    compacted = next(body for body in told(events) if isinstance(body, CompactionEvent))
    shown = next(body for body in told(events) if isinstance(body, MessageEvent) and body.kind == "summary")
    assert shown.message_id == compacted.result.summary_message_id == world.window(agent).messages[1].id
    assert compacted.result.messages_after == len(world.window(agent).messages) < compacted.result.messages_before
    assert compacted.result.tokens_after < compacted.result.tokens_before


@pytest.mark.parametrize(
    ("ratio", "budget", "least"),
    [
        (0.9, 5_880, 5_292),
        (0.8, 200_000 - 4_096 - 4_000, 153_524),  # 153523.2, rounded up
        (0.8, 1_000, 800),
        (0.7, 10, 7),
        (1.0, 1_000, 1_000),
        (0.5, 1, 1),
        (0.9, 0, 0),
        (0.9, -300, 0),
    ],
)
def test_trigger_in_tokens(ratio: float, budget: int, least: int) -> None:
    assert trigger_tokens(ratio, budget) == least


@pytest.mark.parametrize(("mode", "least"), [("sliding_window", 5_292), ("all", 5_292), ("episodic", 4_704)])
@pytest.mark.parametrize("below", [1, 0])
async def test_reported_tokens_at_threshold_start_compaction(
    world: World, process: Process, speaker: Speaker, mode: str, least: int, below: int
) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings(mode))
    await talk(process, agent, 6)
    speaker.used = least - below  # of (6000 - 2 %), 0.9 or 0.8
    await process.send(agent, "And now?")
    assert bool(speaker.summaries) is (below == 0)


@pytest.mark.parametrize("below", [1, 0])
async def test_estimated_tokens_at_threshold_start_compaction(
    world: World, process: Process, speaker: Speaker, below: int
) -> None:
    speaker.used = 0  # no correction
    agent = await small_agent(world, process)
    await talk(process, agent, 6)
    conversation = await process.windows.resolve(ME, agent.id, agent.default_conversation_id)
    settings = process.agents.effective_settings(*conversation)
    standing = (await process.windows.report(ME, *conversation, settings)).total_tokens
    # A message has 12 tokens, and one for each four bytes of its envelope.
    packed = len(world.window(agent).messages[1].text) - len(f"0. {LONG}")
    text = "x" * (4 * (5_292 - below - standing - 12 - 1) - packed)
    await process.send(agent, text)
    assert bool(speaker.summaries) is (below == 0)


async def test_trigger_ratio_of_agent_applies(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings(trigger_ratio=0.5))
    await talk(process, agent, 6)
    speaker.used = 2_950
    await process.send(agent, "And now?")
    assert len(speaker.summaries) == 1


@pytest.mark.parametrize(
    ("kind", "compacts_within"), [(AgentType.LETTA_V1, True), (AgentType.MEMGPT_V2, False)], ids=["v3", "v2"]
)
async def test_v2_compacts_at_end_of_turn_and_v3_after_each_step(
    world: World, process: Process, speaker: Speaker, kind: AgentType, compacts_within: bool
) -> None:
    agent = await small_agent(world, process, kind, include_base_tool_rules=False)
    await talk(process, agent, 6)
    begun = len(world.model.requests)

    def search_then_speak(request: LlmRequest) -> Item:
        model_request = [r for r in world.model.requests[begun:] if not is_summary_request(r)]
        if len(model_request) == 1:
            more = {"request_heartbeat": True} if kind is AgentType.MEMGPT_V2 else {}
            return speaker.reporting(call("archival_memory_search", query="zebra", **more))
        return speaker.reporting(call("send_message", message="No.") if needs_more(request) else say("No."))

    def needs_more(request: LlmRequest) -> bool:
        return request.tool_choice.kind != "auto"

    speaker.turn, speaker.used = search_then_speak, 5_300
    await process.send(agent, "Look it up.")
    order = ["summary" if is_summary_request(r) else "turn" for r in world.model.requests[begun:]]
    assert order[:2] == (["turn", "summary"] if compacts_within else ["turn", "turn"])
    assert "summary" in order
    window = world.window(agent).messages
    require_valid(window)
    assert [m.text for m in window if m.role is Role.USER and "Look" in m.text] == ["Look it up."]
    assert "archival_memory_search" in [created.name for m in window for created in m.tool_calls], (
        "the turn is complete"
    )


async def test_each_overflow_leads_to_a_smaller_request(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 16)
    refused: list[int] = []

    def refuse_twice(request: LlmRequest) -> Item:
        if len(refused) == 2:
            return say("At last.")
        refused.append(len(request.messages))
        return ContextOverflow("too long", provider="scripted", status=400)

    speaker.turn = refuse_twice
    events = await process.send(agent, "Hello?", include_compaction_events=True)
    run = await process.outcome(agent)
    assert (run.stop_reason, run.status) == (StopReason.END_TURN, RunStatus.COMPLETED)
    assert refused[1] < refused[0]
    assert len(world.model.last.messages) < refused[1]
    assert kinds(events) == [
        "CompactionEvent",
        "summary",
        "CompactionEvent",
        "summary",
        "assistant",
        "StopEvent",
        "UsageEvent",
    ]
    require_valid(world.window(agent).messages)
    assert roles(world.window(agent).messages).count("summary") == 1
    assert len(speaker.summaries) == 2
    assert "They spoke of work." in speaker.summaries[1].messages[-1].text, "the earlier summary is included"


async def test_refusal_in_unknown_words_of_a_request_near_the_window_leads_to_one_compaction(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 16)
    refusal = ProviderRefused("scripted answered 400: Zu lang.", provider="scripted", status=400)
    sizes: list[int] = []

    def refuse_long(request: LlmRequest) -> Item:
        sizes.append(len(request.messages))
        return refusal if len(sizes) == 1 else say("At last.")

    def refuse_all(request: LlmRequest) -> Item:
        sizes.append(len(request.messages))
        return refusal

    speaker.turn = refuse_long
    await process.send(agent, "Hello? " + "word " * 1_000)
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED
    assert sizes[1] < sizes[0]
    # The refusal of a short request is final at once.
    sizes.clear()
    speaker.turn = refuse_all
    await process.send(agent, "Hello?")
    error = (await process.outcome(agent)).error
    assert error is not None
    assert (error.reason, len(sizes)) == ("PROVIDER_REFUSED", 1)


async def test_repeated_overflow_stops_the_run(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    await talk(process, agent, 10)
    speaker.turn = lambda request: ContextOverflow("too long", provider="scripted", status=400)
    before = len(world.model.requests) - len(speaker.summaries)
    await process.send(agent, "Hello?")
    assert (await process.outcome(agent)).stop_reason is StopReason.CONTEXT_WINDOW_OVERFLOW
    assert len(world.model.requests) - len(speaker.summaries) - before == 4
    speaker.turn = None
    await process.send(agent, "Are you there?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_turn_that_alone_is_too_long_is_clipped_then_summarized(
    world: World, process: Process, speaker: Speaker
) -> None:
    world.tools.add("print_much", "y" * 4_900)
    agent = await small_agent(world, process, tool_names=("print_much",))
    begun = len(world.model.requests)
    steps = 26

    def print_much(request: LlmRequest) -> Item:
        requests = [r for r in world.model.requests[begun:] if not is_summary_request(r)]
        return say("Done.") if len(requests) > steps else call("print_much")

    speaker.turn = print_much
    await process.send(agent, "Print.")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    requests = [r for r in world.model.requests if not is_summary_request(r)]
    assert len(requests) == steps + 1
    returns = [item.text for r in requests[4:] for m in r.messages for item in m.tool_returns]
    assert any("more characters are left out of this request" in text for text in returns)
    for request in requests:
        require_valid(request.messages)
        assert "Print." in [m.text for m in request.messages], "the start of the turn stays"
        size = sum(len(m.text) + sum(len(item.text) for item in m.tool_returns) for m in request.messages)
        assert size / 4 < 6_000
    assert speaker.summaries
    assert len(world.tools.executed) == steps
    stored = [row for row in world.recall.rows[agent.id] if row.tool_returns]
    assert [len(row.tool_returns[0].text) for row in stored] == [4_900] * steps, "recall has them whole"


async def test_compaction_renders_a_cached_system_message_again(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, prompt_policy=PromptPolicy.CACHE)
    await talk(process, agent, 6)
    block = world.blocks.blocks[world.blocks.held[agent.id][0]]
    world.blocks.put(replace(block, value="Her name is Ada."))
    await process.send(agent, "Hello")
    assert "Ada" not in world.window(agent).messages[0].text
    speaker.used = 5_300
    await process.send(agent, "Hello")
    assert "Ada" in world.window(agent).messages[0].text
