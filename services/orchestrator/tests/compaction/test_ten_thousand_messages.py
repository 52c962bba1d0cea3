"""Ten thousand messages pass through a small window, with summary models that fail at times.

Most of the messages are loaded in bulk, as earlier turns would have stored them. The turns between them are real, and
each of them starts with a window that is too full.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from mnemesh_kit.ids import derive_id
from mnemesh_orchestrator.compaction.planner import MODES, Tokenizer, schemas_tokens
from mnemesh_orchestrator.llm.anthropic_messages import render_body as anthropic
from mnemesh_orchestrator.llm.errors import ContextOverflow, ProviderUnavailable
from mnemesh_orchestrator.llm.openai_chat import render_body as openai_chat
from mnemesh_orchestrator.llm.openai_responses import render_body as openai_responses
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_types.agents import CompactionSettings
from mnemesh_types.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

from ..support.model import Item, call, say
from ..support.world import Process, World, require_valid
from .conftest import WINDOW, Speaker, is_summary_request, memories, roles, small_agent

MESSAGES, FEWER_MESSAGES = 10_000, 2_000
"""A case has fewer, except for the one of SAMPLED with --full, and all with --sweep."""
BULK = 40
"""Loaded turns, of four messages each, between two real turns."""
NEEDLE = "the key is under the third flowerpot."
QUESTION = "Where is the key?"


def keep_notes(request: LlmRequest) -> Item:
    """Answers with everything in the request that is to be remembered."""
    if request.response_format.kind == "json_schema":
        return memories(request)
    seen = any(NEEDLE in message.text for message in request.messages)
    return say(f"They spoke of work, and {NEEDLE}" if seen else "They spoke of work.")


FAILURES: tuple[Callable[[LlmRequest], Item], ...] = (
    keep_notes,
    lambda request: say(" "),
    lambda request: ProviderUnavailable("503", provider="scripted", status=503),
    lambda request: say("blah " * 4_000),
    lambda request: ContextOverflow("too long", provider="scripted", status=400),
    lambda request: call("archival_memory_search", query="x"),
)


def stored_turns(world: World, first: int) -> list[Message]:
    """Returns turns with a call each, as they are stored."""
    messages: list[Message] = []
    for number in range(first, first + BULK):
        at = world.clock.now() + timedelta(milliseconds=number)
        tool_call = ToolCall(f"call-{number}", "archival_memory_search", "{}")
        returned = ToolReturn.from_text(tool_call.id, tool_call.name, ToolStatus.SUCCESS, f"nothing {number}")
        created = f"Remember: {NEEDLE}" if number == 3 else f"{number}: All work and no play makes a long day."
        run = {"run_id": derive_id("run", str(number))}
        messages += [
            Message(derive_id("message", "u", str(number)), Role.USER, at, (TextPart(created),), **run),
            Message(derive_id("message", "c", str(number)), Role.ASSISTANT, at, tool_calls=(tool_call,), **run),
            Message(derive_id("message", "r", str(number)), Role.TOOL, at, tool_returns=(returned,), **run),
            Message(derive_id("message", "a", str(number)), Role.ASSISTANT, at, (TextPart("Fine."),), **run),
        ]
    return messages


async def load(world: World, agent: Agent, messages: Sequence[Message]) -> None:
    world.recall.fill(agent.id, agent.default_conversation_id, messages)


def tokens(request: LlmRequest) -> int:
    """Returns a plain estimate of a request: four bytes per token, and twelve tokens per message."""
    by = Tokenizer()
    return sum(by.message(message) for message in request.messages) + schemas_tokens(request.tools, by)


def require_renderable(request: LlmRequest) -> None:
    """Checks that providers accept the bodies: calls are paired with results, and roles alternate if required."""
    chat: list[dict[str, Any]] = openai_chat(request)["messages"]
    waiting: list[str] = []
    for item in chat:
        if item["role"] == "tool":
            waiting.remove(item["tool_call_id"])
            continue
        assert not waiting, "chat completions: a call without its return"
        waiting = [created["id"] for created in item.get("tool_calls", ())]
    assert not waiting
    items: list[dict[str, Any]] = openai_responses(request)["input"]
    created = [item["call_id"] for item in items if item.get("type") == "function_call"]
    assert created == [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    turns: list[dict[str, Any]] = anthropic(request)["messages"]
    assert turns[0]["role"] == "user"
    for one, other in pairwise(turns):
        assert one["role"] != other["role"], "messages: two of one role in a row"
        used = [block["id"] for block in one["content"] if block["type"] == "tool_use"]
        assert used == [block["tool_use_id"] for block in other["content"] if block["type"] == "tool_result"]


SAMPLED = {("sliding_window", True)}
"""The case that runs without --full."""


@pytest.mark.parametrize(
    ("mode", "is_fickle"),
    [
        pytest.param(
            mode,
            is_fickle,
            id=f"{mode}-{'fickle' if is_fickle else 'folds'}",
            marks=() if (mode, is_fickle) in SAMPLED else pytest.mark.full,
        )
        for mode in MODES
        for is_fickle in (False, True)
    ],
)
async def test_ten_thousand_messages(
    world: World, process: Process, speaker: Speaker, mode: str, *, is_fickle: bool, is_full: bool, is_sweep: bool
) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings(mode))
    costs: list[int] = []
    is_long = is_sweep or (is_full and (mode, is_fickle) in SAMPLED)
    messages = MESSAGES if is_long else FEWER_MESSAGES
    for number, first in enumerate(range(0, messages // 4, BULK)):
        # An unreliable summary model may succeed in one turn and fail in the next.
        speaker.summary = FAILURES[number % len(FAILURES)] if is_fickle else keep_notes
        await load(world, agent, stored_turns(world, first))
        world.model.requests.clear()
        world.faults.calls.clear()
        await process.send(agent, f"{first}. How is it going?")
        assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN, first
        costs.append(len(world.faults.calls))
        turns = [request for request in world.model.requests if not is_summary_request(request)]
        assert len(turns) == 1, "no request was refused"
        assert all(tokens(request) <= WINDOW for request in world.model.requests), first
        assert len(speaker.summaries) <= (9 if is_fickle else 2), first
        require_valid(turns[0].messages)
        require_renderable(turns[0])
        window = world.window(agent).messages
        require_valid(window)
        assert roles(window)[0] == "system"
        assert roles(window).count("summary") <= 1
        assert len(window) < 6 * BULK
    assert roles(window)[1] == "summary"
    assert max(costs[-12:]) <= max(costs[:12]), "a turn costs as much as at the beginning"
    rows = [row for row in world.recall.rows[agent.id] if row.role is not Role.SUMMARY]
    assert len(rows) > messages
    in_sight = any(NEEDLE in message.text for message in window)
    assert in_sight or is_fickle
    assert await answer(world, process, speaker, agent) == ("in sight" if in_sight else "found")


async def answer(world: World, process: Process, speaker: Speaker, agent: Agent) -> str:
    """Returns whether the agent's model found the needle in its window or by a search."""

    def look(request: LlmRequest) -> Item:
        texts = [m for m in request.messages if m.is_from_user]
        place = request.messages.index(texts[-1])
        if any(NEEDLE in item.text for m in request.messages[place:] for item in m.tool_returns):
            return say("found")
        if any(NEEDLE in m.text for m in request.messages):
            return say("in sight")
        return call("conversation_search", query="third flowerpot")

    speaker.turn = look
    await process.send(agent, QUESTION)
    return world.window(agent).messages[-1].text
