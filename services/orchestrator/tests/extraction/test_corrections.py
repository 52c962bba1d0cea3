"""Facts that agents correct and forget with their tools."""

import json

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import MemoryExtractionSettings
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_types.messages import TextPart, ToolStatus

from ..support.model import Item, call, say
from ..support.world import Process, World


class Mind:
    """Answers each turn with the calls that the test gives it, then in words."""

    def __init__(self, world: World) -> None:
        self.calls: list[Item] = []
        world.model.script = self

    def __call__(self, _request: LlmRequest) -> Item:
        return self.calls.pop(0) if self.calls else say("Done.")


@pytest.fixture
def mind(world: World) -> Mind:
    """The world's model."""
    return Mind(world)


async def agent_of(world: World, process: Process) -> Agent:
    return await world.agent(process, initial_messages=(), memory_extraction=MemoryExtractionSettings())


def last_return(world: World, agent: Agent) -> tuple[bool, str]:
    returned = next(m for m in reversed(world.window(agent).messages) if m.tool_returns).tool_returns[0]
    return returned.status is ToolStatus.SUCCESS, returned.text


async def test_agent_corrects_and_forgets_what_it_found(world: World, process: Process, mind: Mind) -> None:
    agent = await agent_of(world, process)
    old = world.episodes.add(agent.id, "The boat is red.")
    mind.calls = [call("episodic_memory_search", query="boat")]
    await process.send(agent, "What colour is the boat?")
    ok, text = last_return(world, agent)
    assert ok
    assert [fact["id"] for fact in json.loads(text)["facts"]] == [old.id]
    mind.calls = [
        call("episodic_memory_correct", fact_id=old.id, statement="The boat is blue.", reason="repainted"),
    ]
    await process.send(agent, "It is blue now.")
    ok, text = last_return(world, agent)
    assert ok
    assert text.endswith("The boat is blue.")
    assert world.episodes.in_scope(agent_id=agent.id) == ["The boat is blue."]
    new_id_ = text.split()[5].rstrip(":")
    said = next(m for m in world.window(agent).messages if m.text == "It is blue now.")
    history = {fact.id: fact for fact in await world.episodes.history(new_id_)}
    assert list(history[new_id_].source.message_ids) == [said.id]
    assert history[old.id].invalid_reason == "repainted"
    mind.calls = [call("episodic_memory_forget", fact_id=new_id_, reason="the user asked")]
    await process.send(agent, "Forget the boat.")
    assert last_return(world, agent) == (True, "Forgotten. This no longer counts: The boat is blue.")
    assert world.episodes.in_scope(agent_id=agent.id) == []


async def test_facts_of_others_are_not_changed(world: World, process: Process, mind: Mind) -> None:
    agent, other = await agent_of(world, process), await agent_of(world, process)
    foreign = world.episodes.add(other.id, "The boat is red.")
    for name, more in (("episodic_memory_correct", {"statement": "x is y"}), ("episodic_memory_forget", {})):
        mind.calls = [call(name, fact_id=foreign.id, **more)]
        await process.send_all(agent, [InputMessage((TextPart("Do it."),), sender_id=new_id("identity"))])
        ok, text = last_return(world, agent)
        assert not ok
        assert foreign.id in text
    assert world.episodes.texts(other.id) == ["The boat is red."]


async def test_closed_fact_is_refused_with_a_text_for_the_model(world: World, process: Process, mind: Mind) -> None:
    agent = await agent_of(world, process)
    fact = world.episodes.add(agent.id, "The boat is red.")
    world.episodes.invalidate(fact)
    mind.calls = [call("episodic_memory_correct", fact_id=fact.id, statement="The boat is blue.")]
    await process.send(agent, "It is blue now.")
    ok, text = last_return(world, agent)
    assert not ok
    assert "closed" in text
