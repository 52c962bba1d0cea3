"""The agents that get the search of episodes and facts by default."""

from dataclasses import replace
from typing import Any

import pytest
from mnemesh_orchestrator.model.agents import Agent, AgentType, AttachedTool
from mnemesh_orchestrator.model.rules import ContinueLoop
from mnemesh_types.agents import CompactionSettings

from ..support.model import call, say
from ..support.world import ME, Process, World, lines

EPISODIC = CompactionSettings(mode="episodic")
NAME = "episodic_memory_search"


def has(agent: Agent) -> bool:
    return agent.tool(NAME) is not None


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2, AgentType.MEMGPT])
async def test_agents_in_episodic_mode_have_the_tool(world: World, process: Process, kind: AgentType) -> None:
    agent = await world.agent(process, kind, compaction_settings=EPISODIC, include_base_tool_rules=True)
    names = [tool.name for tool in agent.tools]
    assert names.index(NAME) == names.index("conversation_search") + 1
    assert ContinueLoop(NAME) in agent.tool_rules
    assert not has(await world.agent(process, kind))


@pytest.mark.parametrize(
    ("kind", "draft"),
    [(AgentType.LETTA_V1, {"include_base_tools": False}), (AgentType.REACT, {}), (AgentType.VOICE_CONVO, {})],
)
async def test_agents_without_search_tools_do_not_have_the_tool(
    world: World, process: Process, kind: AgentType, draft: dict[str, Any]
) -> None:
    assert not has(await world.agent(process, kind, compaction_settings=EPISODIC, **draft))


async def test_tool_is_attached_with_the_mode_and_can_be_detached(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2, include_base_tool_rules=True)
    agent = await process.agents.update(ME, None, agent.id, {"compaction_settings": EPISODIC})
    assert has(agent)
    assert ContinueLoop(NAME) in agent.tool_rules
    agent = await process.agents.detach_tool(ME, None, agent.id, None, NAME)
    shared = replace(EPISODIC, memory_scope="crew")
    agent = await process.agents.update(ME, None, agent.id, {"compaction_settings": shared})
    assert not has(agent), "the mode is as it was"
    agent = await process.agents.attach_tool(ME, None, agent.id, None, NAME)
    agent = await process.agents.update(ME, None, agent.id, {"compaction_settings": None})
    assert agent.tools[-1] == AttachedTool(NAME), "what was remembered is still there to be found"


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_tool_finds_memories_of_the_agent_and_of_its_shared_scope(
    world: World, process: Process, kind: AgentType
) -> None:
    settings = replace(EPISODIC, memory_scope="crew")
    agent = await world.agent(process, kind, compaction_settings=settings)
    stranger = await world.agent(process, kind, compaction_settings=EPISODIC)
    world.episodes.add(agent.id, "our boat is red")
    world.episodes.add(stranger.id, "their boat is blue")
    world.episodes.add("", "the crew's boat is green", name="crew")
    heartbeat = {} if kind is AgentType.LETTA_V1 else {"request_heartbeat": True, "thinking": "Hm."}
    done = say("Red.") if kind is AgentType.LETTA_V1 else call("send_message", message="Red.", thinking="Hm.")
    world.model.follow(call(NAME, query="boat", **heartbeat), done)
    await process.send(agent)
    (found,) = [line for line in lines(world.turn(agent)) if line.startswith(f"tool success of {NAME}")]
    assert "our boat is red" in found
    assert "the crew's boat is green" in found
    assert "their boat is blue" not in found
    ran = await process.tool_runner.run(ME, None, agent.id, NAME, '{"query": "boat"}')
    assert "the crew's boat is green" in ran.text
    assert "blue" not in ran.text
