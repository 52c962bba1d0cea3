"""Conversations of thousands of messages through a small window."""

from datetime import timedelta

import pytest
from mnemesh_kit.ids import derive_id
from mnemesh_orchestrator.compaction.summarizers import MAX_PARTS
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_types.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

from ..support.world import Process, World, require_valid
from .conftest import LONG, Speaker, roles, small_agent

TOLD = "The key is under the third flowerpot."


@pytest.mark.full
async def test_window_of_ten_thousand_messages_is_compacted(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process)
    now = world.clock.now()
    messages: list[Message] = []
    for number in range(2_499):
        at = now + timedelta(seconds=number)
        call = ToolCall(f"call-{number}", "archival_memory_search", "{}")
        returned = ToolReturn.from_text(call.id, call.name, ToolStatus.SUCCESS, f"nothing {number}")
        said = TOLD if number == 3 else f"{number}: {LONG[:80]}"
        messages += [
            Message(derive_id("message", "u", str(number)), Role.USER, at, (TextPart(said),)),
            Message(derive_id("message", "c", str(number)), Role.ASSISTANT, at, tool_calls=(call,)),
            Message(derive_id("message", "r", str(number)), Role.TOOL, at, tool_returns=(returned,)),
            Message(derive_id("message", "a", str(number)), Role.ASSISTANT, at, (TextPart("Fine."),)),
        ]
    world.recall.fill(agent.id, agent.default_conversation_id, messages)
    await process.send(agent, "What now?")
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    after = world.window(agent).messages
    require_valid(after)
    assert roles(after)[:2] == ["system", "summary"]
    assert len(after) < 200
    assert len(speaker.summaries) == MAX_PARTS
    assert TOLD in speaker.summaries[0].messages[-1].text
    for request in speaker.summaries:
        assert len(request.messages[-1].text) < 6_000 * 4
    assert TOLD in [hit.text for hit in (await world.recall.search(agent.id, "third flowerpot")).hits]
