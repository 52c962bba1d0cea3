"""An answer to a request for approval that is sent again: the first run, or its continuation if that was cut off."""

import asyncio
from typing import Any

from mnemesh_testkit.fakes.server import Reply, status

from .drivers.agent_messages import WEATHER, ended
from .lab import Lab

TOOLS: dict[str, Any] = {"client_tools": [WEATHER]}
ONLY_USERS: Any = {"include_return_message_types": ["user_message"]}


def asked(lab: Lab, agent_id: str) -> dict[str, Any]:
    """Lets an agent call a tool of the client; returns the answer to the call."""
    lab.fake.script = [Reply(tool_calls=[("weather", {"city": "Bonn"})])]
    request: Any = lab.client.agents.messages.create(agent_id, input="Weather?", **TOOLS).messages[-1]
    call_id = request.tool_call.tool_call_id
    returned = {"type": "tool", "tool_call_id": call_id, "status": "success", "tool_return": "9 °C"}
    return {"messages": [{"type": "approval", "approvals": [returned]}], **TOOLS}


def users(lab: Lab, agent_id: str) -> list[Any]:
    """Returns the texts of the user's messages."""
    return [row.content for row in lab.client.agents.messages.list(agent_id, **ONLY_USERS).items]  # type: ignore[union-attr]


def test_a_repeated_answer_has_the_run_of_the_first(lab: Lab) -> None:
    agent = lab.agent()
    answer = asked(lab, agent.id)
    lab.fake.script = ["Cold."]
    first, again = (lab.client.agents.messages.create(agent.id, **answer) for _ in range(2))
    assert {message.run_id for message in (*first.messages, *again.messages)} == {first.messages[0].run_id}
    assert users(lab, agent.id) == ["Weather?"]


def test_a_repeated_answer_continues_a_turn_that_was_cancelled(lab: Lab) -> None:
    agent = lab.agent()
    answer = asked(lab, agent.id)
    lab.fake.script = lambda _: Reply(text="It is cold today.", gates=[asyncio.Event()])
    kinds = []
    for event in lab.client.agents.messages.create(agent.id, streaming=True, **answer):
        kinds.append(event.message_type)
        if event.message_type == "tool_return_message":
            lab.client.agents.messages.cancel(agent.id)
    assert kinds[-2:] == ["stop_reason", "usage_statistics"]
    lab.fake.script = lambda _: "Cold."
    done: Any = lab.client.agents.messages.create(agent.id, **answer)
    assert (done.stop_reason.stop_reason, done.messages[-1].content) == ("end_turn", "Cold.")
    assert len(users(lab, agent.id)) == 2
    assert "keep-alive" in users(lab, agent.id)[-1]
    sent = [message for message in lab.fake.requests[-1].body["messages"] if message["role"] == "tool"]
    assert [message["content"].count("9 °C") for message in sent] == [1], "the return is in the window once"


def test_a_repeated_answer_continues_a_turn_that_failed_with_its_own_messages(lab: Lab) -> None:
    agent = lab.agent()
    answer = asked(lab, agent.id)
    lab.fake.script = lambda _: status(400, "Refused.")
    failed = lab.client.agents.messages.create_async(agent.id, **answer)
    assert ended(lab, failed.id).status == "failed"
    lab.fake.script = lambda _: "Cold."
    more = {**answer, "messages": [*answer["messages"], {"role": "user", "content": "And now?"}]}
    done = lab.client.agents.messages.create_async(agent.id, **more)
    assert done.id != failed.id
    assert ended(lab, done.id).status == "completed"
    assert users(lab, agent.id) == ["Weather?", "And now?"]
