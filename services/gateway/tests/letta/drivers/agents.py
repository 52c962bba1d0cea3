"""Agents: what a script does with them."""

import letta_client
import pytest

from ..lab import MODEL, Lab, drives


@drives("health")
def health(lab: Lab) -> None:
    answer = lab.client.health()
    assert (answer.status, bool(answer.version)) == ("ok", True)


@drives("agents.create", "agents.retrieve")
def create(lab: Lab) -> None:
    agent = lab.client.agents.create(
        name="ada",
        description="A test.",
        model=MODEL,
        system="You are Ada.",
        memory_blocks=[
            {"label": "human", "value": "Nothing yet."},
            {"label": "persona", "value": "Kind.", "limit": 50},
        ],
        tags=["b", "a"],
        metadata={"z": 1, "a": 2**60},
        tool_rules=[{"type": "exit_loop", "tool_name": "send_message"}],
        context_window_limit=16_000,
        timezone="Europe/Berlin",
    )
    again = lab.client.agents.retrieve(agent.id)
    assert again == agent
    assert agent.id.startswith("agent-")
    assert (agent.name, agent.agent_type, agent.system) == ("ada", "letta_v1_agent", "You are Ada.")
    assert {block.label: (block.value, block.limit) for block in agent.memory.blocks} == {
        "human": ("Nothing yet.", 100_000),
        "persona": ("Kind.", 50),
    }
    assert agent.blocks == agent.memory.blocks
    assert sorted(agent.tags) == ["a", "b"]
    assert list((agent.metadata or {}).items()) == [("z", 1), ("a", 2**60)]
    assert (agent.model, agent.llm_config.handle, agent.llm_config.context_window) == (MODEL, MODEL, 16_000)
    assert {"conversation_search", "archival_memory_search"} <= {tool.name for tool in agent.tools}
    assert all(tool.id.startswith("tool-") and tool.json_schema for tool in agent.tools)
    assert [(rule.type, rule.tool_name) for rule in agent.tool_rules or ()] == [("exit_loop", "send_message")]
    assert len(agent.message_ids or ()) >= 1
    assert agent.created_at is not None
    assert agent.created_at.tzinfo is not None
    rehearsal = lab.client.agents.create(memory_blocks=[])
    assert (rehearsal.model, rehearsal.blocks) == ("mnemesh/rehearsal", [])
    sleeper = lab.client.agents.create(agent_type="sleeptime_agent", enable_sleeptime=True, memory_blocks=[])
    assert (sleeper.agent_type, bool(sleeper.enable_sleeptime)) == ("sleeptime_agent", False), "it has no partner"
    with pytest.raises(letta_client.NotFoundError):
        lab.client.agents.create(model="openai-unknown/none")
    with pytest.raises(letta_client.UnprocessableEntityError, match="memory_blocks"):
        lab.client.agents.create(memory_blocks=[{"label": "human"}])  # type: ignore[typeddict-item]
    for malformed in ("agent-1", "block-123e4567-e89b-42d3-8456-426614174000"):
        with pytest.raises(letta_client.UnprocessableEntityError, match="agent_id"):
            lab.client.agents.retrieve(malformed)
    with pytest.raises(letta_client.NotFoundError):
        lab.client.agents.retrieve("agent-123e4567-e89b-42d3-8456-426614174000")


@drives("agents.update")
def update(lab: Lab) -> None:
    agent = lab.agent(name="old", description="kept", tags=["a"])
    block = lab.agent(memory_blocks=[{"label": "extra", "value": "x"}]).blocks[0]
    changed = lab.client.agents.update(agent.id, name="new", tags=[], block_ids=[str(block.id)])
    assert (changed.name, changed.description, changed.tags) == ("new", "kept", [])
    assert [held.label for held in changed.blocks] == ["extra"]
    cleared = lab.client.agents.update(agent.id, context_window_limit=9_000, secrets={"KEY": "value"})
    assert cleared.llm_config.context_window == 9_000
    assert [variable.key for variable in cleared.secrets or ()] == ["KEY"]
    warmer = lab.client.agents.update(agent.id, model_settings={"provider_type": "openai", "temperature": 0.5})
    assert (warmer.llm_config.temperature, warmer.llm_config.context_window) == (0.5, 9_000)
    tools = {tool.name: tool.id for tool in lab.client.agents.create(model=MODEL).tools}
    equipped = lab.client.agents.update(agent.id, tool_ids=[tools["conversation_search"]])
    assert [tool.name for tool in equipped.tools] == ["conversation_search"]
    assert lab.client.agents.update(agent.id, tool_ids=[]).tools == []
    with pytest.raises(letta_client.UnprocessableEntityError, match="tags"):
        lab.client.agents.update(agent.id, tags="a")  # type: ignore[arg-type]
    assert lab.client.agents.retrieve(agent.id).name == "new"


@drives("agents.list")
def list_agents(lab: Lab) -> None:
    made = [lab.agent(name=f"listed-{n}", tags=["listed", f"n{n}"]) for n in range(5)]
    ids = [agent.id for agent in made]
    found = [agent.id for agent in lab.client.agents.list(tags=["listed"], limit=2)]
    assert found == ids[::-1], "every page, newest first"
    page = lab.client.agents.list(tags=["listed"], limit=2, order="asc", after=ids[1])
    assert [agent.id for agent in page.items] == ids[2:4]
    before = lab.client.agents.list(tags=["listed"], limit=2, order="asc", before=ids[3])
    assert [agent.id for agent in before.items] == ids[:2], "the range first, then the limit from its head"
    assert [agent.id for agent in lab.client.agents.list(query_text="LISTED-3")] == [ids[3]]
    assert [agent.id for agent in lab.client.agents.list(name="listed-1")] == [ids[1]]
    both = lab.client.agents.list(tags=["listed", "n4"], match_all_tags=True)
    assert [agent.id for agent in both] == [ids[4]]
    count = lab.client.get("/v1/agents/count?tags=listed", cast_to=int)
    assert count == 5
    assert [block.label for block in page.items[0].blocks] == ["human"]
    with pytest.raises(letta_client.UnprocessableEntityError, match="limit"):
        lab.client.agents.list(limit="many")  # type: ignore[arg-type]


@drives("agents.delete")
def delete(lab: Lab) -> None:
    agent = lab.agent()
    lab.client.agents.delete(agent.id)
    with pytest.raises(letta_client.NotFoundError):
        lab.client.agents.retrieve(agent.id)
    with pytest.raises(letta_client.NotFoundError):
        lab.client.agents.delete(agent.id)
