"""Calls that wait for approval, in windows that are compacted meanwhile."""

import pytest
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.conversations import open_request
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_testkit.plugin import sampled
from mnemesh_types.agents import CompactionSettings
from mnemesh_types.messages import Approve

from ..support.model import Item, call, say
from ..support.world import ME, World, require_valid
from .conftest import Speaker, roles, small_agent, summary_of, talk

MODES = ("sliding_window", "all", "self_compact_sliding_window", "self_compact_all")


@pytest.mark.parametrize("mode", sampled(MODES, 2))
@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_pending_approval_survives_compactions(
    world: World, speaker: Speaker, kind: AgentType, mode: str
) -> None:
    first = world.process()
    agent = await small_agent(
        world, first, kind, tool_rules=(RequiresApproval("archival_memory_insert"),), include_base_tool_rules=False
    )
    await talk(first, agent, 5)

    def insert(request: LlmRequest) -> Item:
        return speaker.reporting(call("archival_memory_insert", content="one"))

    speaker.turn, speaker.used = insert, 5_300
    await first.send(agent, "Keep one.")
    waiting = open_request(world.window(agent).messages)
    assert waiting is not None
    await first.worker.stop()

    process = world.process()
    place = (agent.id, agent.default_conversation_id)
    for _ in range(2):
        await process.compactions.compact(ME, None, *place, CompactionSettings(mode), dry_run=False)
        if "all" in mode:
            break
    window = world.window(agent).messages
    assert summary_of(window) == "They spoke of work."
    still = open_request(window)
    assert still is not None
    assert (still.request, still.caller) == (waiting.request, waiting.caller)
    assert "Keep one." in [message.text for message in window], "the turn with the request stays whole"

    heartbeat = say("Kept.") if kind is AgentType.LETTA_V1 else call("send_message", message="Kept.")
    speaker.turn, speaker.used = lambda request: heartbeat, 100
    await process.answer(agent, *(Approve(created.id) for created in still.calls))
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN
    assert await world.archival.texts(agent.id) == ["one"]
    require_valid(world.window(agent).messages)
    assert roles(world.window(agent).messages).count("summary") == 1
    await process.worker.stop()
