"""How agents think if their clients do not say it: by the model itself, or in the arguments of tools."""

from typing import Any
from uuid import uuid4

import pytest
from mnemesh_testkit.fakes.server import Reply

from .lab import MODEL, Lab
from .rest import Rest

ON: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture
def claude(rest: Rest) -> str:
    """A model that can think before it answers. No request reaches it."""
    name = f"acme-{uuid4()}"
    body = {"name": name, "provider_type": "anthropic", "api_key": "sk-acme", "base_url": "http://127.0.0.1:9"}
    rest.call("POST", "/providers/", json=body)
    return f"{name}/claude-sonnet-4-5"


def thinking(state: Any) -> Any:
    """Returns the settings of thoughts of an agent's model."""
    return state.to_dict()["model_settings"].get("thinking")


def in_arguments(state: Any) -> bool:
    """Returns whether an agent writes its thoughts into the arguments of tools."""
    found: bool = state.llm_config.put_inner_thoughts_in_kwargs
    return found


def test_a_model_that_can_think_does_so_unless_it_is_told_not_to(lab: Lab, claude: str) -> None:
    assert thinking(lab.agent(model=claude)) == ON
    old = lab.agent(model=claude, agent_type="memgpt_v2_agent")
    assert (thinking(old), in_arguments(old)) == (ON, False)
    off = {"type": "disabled"}
    without = [
        lab.agent(model=claude, reasoning=False),
        lab.agent(model=claude, enable_reasoner=False),
        lab.agent(model=claude, model_settings={"provider_type": "anthropic", "thinking": off}),
    ]
    assert [thinking(agent) for agent in without] == [off] * 3
    more = {"type": "enabled", "budget_tokens": 4096}
    agent = lab.agent(model=claude, model_settings={"provider_type": "anthropic", "thinking": more})
    assert thinking(agent) == more


def test_an_update_that_sets_such_a_model_lets_it_think(lab: Lab, claude: str) -> None:
    agent = lab.agent()
    assert thinking(lab.client.agents.update(agent.id, model=claude)) == ON
    assert thinking(lab.client.agents.update(agent.id, reasoning=False)) == {**ON, "type": "disabled"}
    assert thinking(lab.client.agents.update(agent.id, name="renamed")) == {**ON, "type": "disabled"}
    assert thinking(lab.client.agents.update(agent.id, model=MODEL)) is None


def test_older_types_think_in_arguments_until_an_update_sets_their_model(lab: Lab) -> None:
    agent = lab.agent(agent_type="memgpt_v2_agent", include_base_tools=True)
    assert in_arguments(agent)
    assert not in_arguments(lab.agent(agent_type="memgpt_v2_agent", reasoning=False))
    lab.fake.script = lambda _: Reply(tool_calls=[("send_message", {"message": "Hello.", "thinking": "A greeting."})])
    first = lab.client.agents.messages.create(agent.id, input="Hi")
    assert [message.message_type for message in first.messages] == ["reasoning_message", "assistant_message"]
    settings: Any = {"provider_type": "openai", "temperature": 0.5}
    changed = lab.client.agents.update(agent.id, model=MODEL, model_settings=settings)
    assert not in_arguments(changed)
    lab.fake.script = lambda _: Reply(tool_calls=[("send_message", {"message": "Hello."})])
    second = lab.client.agents.messages.create(agent.id, input="Hi")
    assert [message.message_type for message in second.messages] == ["assistant_message"]
    again = lab.client.agents.update(agent.id, model=MODEL, reasoning=True)
    assert in_arguments(again)
    assert again.llm_config.temperature == 0.5, "a model alone keeps the settings"
