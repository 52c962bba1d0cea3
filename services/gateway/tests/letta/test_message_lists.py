"""Lists of messages: calls that wait for approval, and the returns of a tool whose words are the assistant's."""

from typing import Any

from mnemesh_testkit.fakes.server import Reply

from .lab import MODEL, Lab

PARALLEL: Any = {"provider_type": "openai", "parallel_tool_calls": True}


def kinds(rows: Any) -> list[str]:
    """Returns the types of messages."""
    return [row.message_type for row in rows]


def test_the_return_of_spoken_words_is_left_out_of_lists(lab: Lab) -> None:
    agent = lab.agent(agent_type="memgpt_v2_agent", include_base_tools=True, reasoning=False)
    lab.fake.script = [Reply(tool_calls=[("send_message", {"message": "Hello."})])]
    lab.client.agents.messages.create(agent.id, input="Hi")
    rows = lab.client.agents.messages.list(agent.id, limit=3).items
    assert kinds(rows)[-2:] == ["user_message", "assistant_message"]
    calls = lab.client.agents.messages.list(agent.id, limit=3, use_assistant_message=False).items
    assert kinds(calls) == ["user_message", "tool_call_message", "tool_return_message"]


def test_a_return_that_says_why_words_were_not_sent_is_in_lists(lab: Lab) -> None:
    agent = lab.agent(agent_type="memgpt_v2_agent", include_base_tools=True, reasoning=False)
    lab.fake.script = [
        Reply(tool_calls=[("send_message", {"message": "Hello.", "loud": True})]),
        Reply(tool_calls=[("send_message", {"message": "Hello."})]),
    ]
    lab.client.agents.messages.create(agent.id, input="Hi")
    rows: Any = lab.client.agents.messages.list(agent.id).items
    assert [row.status for row in rows if row.message_type == "tool_return_message"] == ["error"]


def test_a_step_that_waits_for_approval_is_one_message_with_the_calls_in_their_places(lab: Lab) -> None:
    agent = lab.client.agents.create(model=MODEL, model_settings=PARALLEL, include_base_tools=True)
    lab.client.agents.tools.update_approval("conversation_search", agent_id=agent.id, body_requires_approval=True)
    calls = [("memory", {"command": "view"}), ("conversation_search", {"query": "tea"})]
    lab.fake.script = [Reply(text="I look.", reasoning="Two tools.", tool_calls=calls), "Done."]
    done: Any = lab.client.agents.messages.create(agent.id, input="Look.").messages
    expected = ["reasoning_message", "assistant_message", "tool_call_message", "approval_request_message"]
    assert kinds(done) == expected
    assert {message.id for message in done} == {done[-1].id}
    listed: Any = lab.client.agents.messages.list(agent.id).items[-4:]
    assert [(row.message_type, row.id, row.otid) for row in listed] == [(m.message_type, m.id, m.otid) for m in done]
    assert [call.name for call in listed[2].tool_calls] == [listed[2].tool_call.name] == ["memory"]
    approval: Any = {"type": "approval", "tool_call_id": done[-1].tool_call.tool_call_id, "approve": True}
    lab.client.agents.messages.create(agent.id, messages=[{"type": "approval", "approvals": [approval]}])
    later = lab.client.agents.messages.list(agent.id, after=done[0].id).items
    assert kinds(later) == ["approval_response_message", "tool_return_message", "assistant_message"]
