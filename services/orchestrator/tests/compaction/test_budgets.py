"""Token budgets of requests, triggers of compaction, and token estimates of texts."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from mnemesh_orchestrator.compaction.planner import schemas_tokens, tokenizer_for, unsent_message_ids
from mnemesh_orchestrator.loop.state import longest_prompt, prompt_limit
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.models import ToolSchema
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_types.agents import CompactionSettings, ModelSettings
from mnemesh_types.messages import ContentPart, ImagePart, Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

from ..support.world import ME, Process, World, require_valid
from .conftest import LONG, SMALL, Speaker, small_agent, talk

NOW = datetime(2026, 1, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("window", "output", "limit"),
    [
        (200_000, None, 196_000),  # the margin is a fiftieth
        (200_000, 4_096, 191_904),
        (8_000, 6_000, 3_840),  # an answer uses at most half of the window
        (32_000, 0, 31_360),
        (1, None, 1),
    ],
)
def test_budget_is_window_without_answer_and_margin(window: int, output: int | None, limit: int) -> None:
    settings = ModelSettings(max_output_tokens=output)
    assert prompt_limit(settings, window) == limit, "the model's window"
    assert prompt_limit(replace(settings, context_window=window), 1_000_000) == limit, "the agent's setting precedes it"


@pytest.mark.parametrize(
    ("output", "longest"), [(None, 7_840), (1_000, 6_840), (6_000, 6_840)], ids=["unlimited", "short", "long"]
)
def test_a_request_that_cannot_be_shortened_may_take_more_than_the_budget(output: int | None, longest: int) -> None:
    settings = ModelSettings(max_output_tokens=output)
    assert longest_prompt(settings, 8_000) == longest
    assert longest >= prompt_limit(settings, 8_000)


async def test_a_long_input_in_a_small_window_is_sent(world: World, process: Process, speaker: Speaker) -> None:
    small = replace(SMALL, context_window=3_000, max_output_tokens=2_900)
    agent = await small_agent(world, process, model_settings=small)
    assert prompt_limit(small, 0) == 1_440
    await process.send(agent, "word " * 300)
    outcome = await process.outcome(agent)
    assert outcome.status is RunStatus.COMPLETED
    other = await small_agent(world, process, model_settings=small)
    await process.send(other, "word " * 2_000)
    assert (await process.outcome(other)).stop_reason is StopReason.CONTEXT_WINDOW_OVERFLOW


@pytest.mark.parametrize("below", [1, 0])
async def test_larger_answer_limit_lowers_trigger(world: World, process: Process, speaker: Speaker, below: int) -> None:
    agent = await small_agent(world, process, model_settings=replace(SMALL, max_output_tokens=1_000))
    await talk(process, agent, 6)
    speaker.used = 4_392 - below  # nine tenths of 6000 - 1000 - 120
    await process.send(agent, "And now?")
    assert bool(speaker.summaries) is (below == 0)


async def test_agent_without_window_setting_has_window_of_model(
    world: World, process: Process, speaker: Speaker
) -> None:
    agent = await small_agent(world, process, model_settings=ModelSettings())
    await talk(process, agent, 6)
    speaker.used = 28_223  # below nine tenths of 32000 less 2 %
    await process.send(agent, "And now?")
    assert speaker.summaries == []
    speaker.used = 28_224
    await process.send(agent, "And now?")
    assert len(speaker.summaries) == 1


@pytest.mark.parametrize(
    ("handle", "text", "tokens"),
    [
        ("openai/gpt-4.1", "a" * 400, 101),
        ("anthropic/claude-sonnet-4-5", "a" * 350, 101),
        ("of-a-customer/model", "a" * 400, 101),
        ("openai/gpt-4.1", "語" * 400, 301),  # bytes count, because other scripts need more tokens than English
        ("openai/gpt-4.1", "", 1),
    ],
)
def test_tokens_of_text_are_its_bytes_divided_by_figure_of_provider(handle: str, text: str, tokens: int) -> None:
    assert tokenizer_for(handle).text(text) == tokens


def message(*content: ContentPart, role: Role = Role.USER, id_: str = "message-1", **fields: object) -> Message:
    return Message(id_, role, NOW, content, **fields)  # type: ignore[arg-type]


def test_tokens_of_message_include_envelope_and_every_part() -> None:
    by = tokenizer_for("openai/gpt-4.1")
    plain = by.message(message(TextPart("a" * 400)))
    assert plain == 12 + 101
    picture = ImagePart(media_type="image/png", data=b"x" * 100_000)
    assert by.message(message(TextPart("a" * 400), picture)) == plain + 1_000
    assert tokenizer_for("anthropic/claude").message(message(picture)) == 12 + 1_600
    call = ToolCall("call-1", "search", "b" * 800)
    assert by.message(message(role=Role.ASSISTANT, tool_calls=(call,))) == 12 + 2 + 201
    returned = message(
        role=Role.TOOL, tool_returns=(ToolReturn.from_text("call-1", "search", ToolStatus.SUCCESS, "c" * 4_000),)
    )
    assert by.message(returned) == 12 + 12 + 1_001
    assert by.message(returned, 400) == 12 + 12 + 101, "as much of it as the request contains"


def test_tokens_of_tool_are_those_of_its_schema() -> None:
    by = tokenizer_for("openai/gpt-4.1")
    small, large = ToolSchema("a", "b", {}), ToolSchema("a", "b" * 401, {})
    assert schemas_tokens([], by) == 0
    assert schemas_tokens([large], by) == schemas_tokens([small], by) + 100
    assert schemas_tokens([small, large], by) == schemas_tokens([small], by) + schemas_tokens([large], by)


def test_messages_that_are_not_sent_have_no_tokens() -> None:
    call = ToolCall("call-1", "search", "{}")
    asks = message(role=Role.APPROVAL, id_="message-2", tool_calls=(call,))
    assert unsent_message_ids([message(role=Role.ASSISTANT, tool_calls=(call,)), asks]) == {"message-2"}
    assert unsent_message_ids([asks]) == frozenset()


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.6])
async def test_share_of_messages_is_evicted_for_every_agent_type(
    world: World, process: Process, speaker: Speaker, kind: AgentType, share: float
) -> None:
    agent = await small_agent(world, process, kind)
    await talk(process, agent, 8, LONG[:40])
    before = world.window(agent).messages[1:]
    settings = CompactionSettings(sliding_window_percentage=share)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, settings, dry_run=False)
    after = world.window(agent).messages
    require_valid(after)
    left = len(before) - len(after[2:])
    assert share * len(before) - 0.5 <= left <= share * len(before) + 2, "up to an allowed cut"
