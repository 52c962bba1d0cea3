"""The state of an agent shows the settings of its model, and its group."""

from typing import Any

from .lab import MODEL, Lab

DEFAULTS: dict[str, Any] = {
    "provider_type": "openai",
    "max_output_tokens": 16384,
    "temperature": 1.0,
    "parallel_tool_calls": True,
    "strict": False,
    "reasoning": {"reasoning_effort": "minimal"},
    "response_format": None,
}


def settings(state: Any) -> Any:
    """Returns the settings of a state's model as JSON."""
    return state.to_dict()["model_settings"]


def test_settings_that_nobody_set_have_lettas_defaults(lab: Lab) -> None:
    agent = lab.agent()
    assert settings(agent) == DEFAULTS
    changed = lab.client.agents.update(agent.id, model_settings={"provider_type": "openai", "temperature": 0.5})
    assert settings(changed) == DEFAULTS | {"temperature": 0.5}
    assert settings(lab.client.agents.update(agent.id, name="renamed")) == DEFAULTS | {"temperature": 0.5}


def test_defaults_that_are_shown_are_not_sent_to_the_provider(lab: Lab) -> None:
    lab.client.agents.messages.create(lab.agent().id, input="Hi.")
    assert (
        not {"temperature", "max_tokens", "max_completion_tokens", "reasoning_effort"}
        & lab.fake.requests[-1].body.keys()
    )


def test_the_answer_to_a_creation_has_the_group_of_the_agent(lab: Lab) -> None:
    agent = lab.client.agents.create(model=MODEL, enable_sleeptime=True)
    assert agent.multi_agent_group is not None
    assert len(set(agent.multi_agent_group.agent_ids) - {agent.id}) == 1
    assert lab.agent().multi_agent_group is None


def test_the_format_of_answers_in_the_settings_of_a_model_reaches_the_provider(lab: Lab) -> None:
    schema = {"name": "answer", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    given: Any = {"type": "json_schema", "json_schema": schema}
    agent = lab.agent(model_settings={"provider_type": "openai", "response_format": given})
    lab.fake.script = lambda _: '{"city": "Paris"}'
    lab.client.agents.messages.create(agent.id, input="Hi.")
    sent = lab.fake.requests[-1].body["response_format"]
    assert (sent["type"], sent["json_schema"]["name"]) == ("json_schema", "answer")
    assert settings(agent)["response_format"]["type"] == "json_schema"
    lab.client.agents.update(agent.id, model_settings={"provider_type": "openai", "response_format": {"type": "text"}})
    lab.client.agents.messages.create(agent.id, input="Hi.")
    assert lab.fake.requests[-1].body.get("response_format", {"type": "text"}) == {"type": "text"}


def test_limits_of_open_files_are_those_in_effect(lab: Lab) -> None:
    small, large = lab.agent(context_window_limit=8_000), lab.agent(context_window_limit=200_000)
    assert (small.max_files_open, small.per_file_view_window_char_limit) == (3, 5_000)
    assert (large.max_files_open, large.per_file_view_window_char_limit) == (10, 40_000)
    changed = lab.client.agents.update(large.id, max_files_open=2)
    assert (changed.max_files_open, changed.per_file_view_window_char_limit) == (2, 40_000)
