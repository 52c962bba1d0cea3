"""Single answers of models over Letta's API."""

import json

import httpx
from mnemesh_testkit.timeouts import scaled

from .lab import Lab

MISSING = "agent-00000000-0000-4000-8000-000000000000"


def post(lab: Lab, agent_id: str, **body: object) -> httpx.Response:
    return httpx.post(f"{lab.client.base_url}/v1/agents/{agent_id}/generate", json=body, timeout=scaled(60))


def test_a_prompt_is_answered_and_not_stored(lab: Lab) -> None:
    agent = lab.agent()
    before = list(lab.client.agents.messages.list(agent.id))
    answer = post(lab, agent.id, prompt="What is two and two?", system_prompt="You teach mathematics.").json()
    assert (answer["content"], answer["model"]) == ("Hello.", "fake-model")
    assert answer["usage"]["total_tokens"] > 0
    sent = lab.fake.requests[-1].body
    assert [message["content"] for message in sent["messages"]] == ["You teach mathematics.", "What is two and two?"]
    assert "tools" not in sent
    assert list(lab.client.agents.messages.list(agent.id)) == before


def test_another_model_and_a_schema(lab: Lab) -> None:
    agent = lab.agent(model="mnemesh/rehearsal")
    lab.fake.script = [json.dumps({"sum": 4})]
    schema = {"properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    answer = post(lab, agent.id, prompt="2 + 2", override_model="openai/other", response_schema=schema).json()
    assert (json.loads(answer["content"]), answer["model"]) == ({"sum": 4}, "other")
    assert '"sum"' in json.dumps(lab.fake.requests[-1].body)


def test_refusals_name_what_is_wrong(lab: Lab) -> None:
    agent = lab.agent()
    for prompt in ("", "  \n"):
        refused = post(lab, agent.id, prompt=prompt)
        assert (refused.status_code, "prompt" in refused.text) == (422, True)
    assert post(lab, MISSING, prompt="Hi.").status_code == 404
    unknown = post(lab, agent.id, prompt="Hi.", override_model="nobody/none")
    assert (unknown.status_code, "not found" in unknown.text.lower()) == (404, True)
    assert lab.fake.requests == []
