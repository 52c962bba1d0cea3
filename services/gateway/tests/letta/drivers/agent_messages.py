"""Messages of agents: turns, streams, approvals, lists."""

import time
from typing import Any

import httpx
import letta_client
import pytest
from mnemesh_testkit.fakes.server import Reply, hang, status
from mnemesh_testkit.timeouts import scaled

from ..lab import Lab, drives

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ended(lab: Lab, run_id: str) -> Any:
    """Waits for the end of a run and returns it."""
    deadline = time.monotonic() + scaled(60)
    while (run := lab.client.runs.retrieve(run_id)).completed_at is None:
        assert time.monotonic() < deadline, run
        time.sleep(0.02)
    return run


@drives("agents.messages.create")
def create(lab: Lab) -> None:
    agent = lab.agent()
    lab.fake.script = lambda _: "Hello, Ada."
    answer = lab.client.agents.messages.create(agent.id, messages=[user("Hi")])  # type: ignore[list-item]
    (said,) = answer.messages
    assert (said.message_type, said.content) == ("assistant_message", "Hello, Ada.")
    assert said.id.startswith("message-")
    assert (said.run_id or "").startswith("run-")
    assert (said.step_id or "").startswith("step-")
    assert (answer.stop_reason.stop_reason, answer.usage.step_count) == ("end_turn", 1)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (11, 7, 18)
    assert answer.usage.reasoning_tokens is None, "not reported is null"
    short = lab.client.agents.messages.create(agent.id, input="Hi", include_return_message_types=["tool_call_message"])
    assert short.messages == []
    for wrong in ({}, {"messages": []}, {"messages": [{"role": "robot", "content": "x"}]}, {"messages": "Hi"}):
        with pytest.raises(letta_client.UnprocessableEntityError, match="messages"):
            lab.client.agents.messages.create(agent.id, **wrong)
    with pytest.raises(letta_client.UnprocessableEntityError, match="background"):
        lab.client.agents.messages.create(agent.id, input="Hi", background=True)
    lab.fake.script = lambda _: status(401, "Bad key.")
    with pytest.raises(letta_client.AuthenticationError, match="llm_authentication"):
        lab.client.agents.messages.create(agent.id, input="Hi")


@drives("agents.messages.stream")
def stream(lab: Lab) -> None:
    agent = lab.agent()
    lab.fake.script = lambda _: Reply(text="One two three four.", reasoning="Count.")
    whole = list(lab.client.agents.messages.stream(agent.id, input="Count"))
    kinds = ["ping", "reasoning_message", "assistant_message", "stop_reason", "usage_statistics"]
    assert [chunk.message_type for chunk in whole] == kinds
    assert len({chunk.run_id for chunk in whole[:3]}) == 1, "the ping announces the run"
    tokens = list(lab.client.agents.messages.stream(agent.id, input="Count", stream_tokens=True))
    said = [chunk for chunk in tokens if chunk.message_type == "assistant_message"]
    assert "".join(str(chunk.content) for chunk in said) == "One two three four."
    assert len({(chunk.id, chunk.otid) for chunk in said}) == 1
    assert [chunk.message_type for chunk in tokens[-2:]] == ["stop_reason", "usage_statistics"]
    events = raw(lab, agent.id, {"input": "Count"})
    assert events[-1] == "data: [DONE]"
    background = list(lab.client.agents.messages.stream(agent.id, input="Count", background=True))
    numbers = [chunk.seq_id for chunk in background if chunk.message_type.endswith("_message")]
    assert numbers == [2, 3]
    run_id = str(background[0].run_id)  # type: ignore[union-attr]
    rest = list(lab.client.runs.messages.stream(run_id, starting_after=1))
    assert rest == background[1:], "a replay equals what was live"
    lab.fake.script = lambda _: status(400, "No.")
    with pytest.raises(letta_client.BadRequestError):
        list(lab.client.agents.messages.stream(agent.id, input="Count", include_pings=False))
    with pytest.raises(letta_client.APIError, match="openai answered 400"):
        list(lab.client.agents.messages.stream(agent.id, input="Count"))


def raw(lab: Lab, agent_id: str, body: dict[str, Any]) -> list[str]:
    """Returns the lines of a stream that are not empty."""
    url = f"{lab.client.base_url}/v1/agents/{agent_id}/messages/stream"
    with httpx.stream("POST", url, json=body, timeout=scaled(60)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line for line in response.iter_lines() if line]


@drives("agents.messages.create_async", "runs.retrieve", "runs.list", "runs.usage.retrieve")
def create_async(lab: Lab) -> None:
    agent = lab.agent()
    started = lab.client.agents.messages.create_async(agent.id, input="Hi")
    assert (started.agent_id, started.background) == (agent.id, True)
    run = ended(lab, started.id)
    assert (run.status, run.stop_reason) == ("completed", "end_turn")
    second = lab.client.agents.messages.create(agent.id, input="Again").messages[0].run_id
    assert [each.id for each in lab.client.runs.list(agent_id=agent.id, limit=1)] == [second, run.id]
    assert [each.id for each in lab.client.runs.list(agent_ids=[agent.id], background=True)] == [run.id]
    assert list(lab.client.runs.list(agent_id=agent.id, statuses=["failed"])) == []
    assert lab.client.runs.usage.retrieve(run.id).total_tokens == 18
    with pytest.raises(letta_client.UnprocessableEntityError, match="statuses"):
        lab.client.runs.list(statuses=["unknown"])
    lab.client.delete(f"/v1/runs/{run.id}", cast_to=object)
    with pytest.raises(letta_client.NotFoundError):
        lab.client.runs.retrieve(run.id)


@drives("agents.messages.list", "messages.list", "messages.retrieve")
def list_messages(lab: Lab) -> None:
    agent = lab.agent()
    for number in range(3):
        lab.fake.script = lambda _, number=number: f"Answer {number}."
        lab.client.agents.messages.create(agent.id, input=f"Question {number}")
    page = lab.client.agents.messages.list(agent.id, limit=4)
    said = [getattr(message, "content", None) for message in page.items]
    assert said == ["Question 1", "Answer 1.", "Question 2", "Answer 2."], "the newest, in chronological order"
    cursor = page.items[2].id
    newer = lab.client.agents.messages.list(agent.id, after=page.items[1].id)
    assert newer.items == page.items[2:], "a cursor is a position in time"
    assert lab.client.agents.messages.list(agent.id, before=cursor, limit=2).items == page.items[:2]
    assert [message.id for message in lab.client.agents.messages.list(agent.id)] == [
        message.id for message in lab.client.agents.messages.list(agent.id, limit=100).items
    ], "no message twice"
    every = list(lab.client.agents.messages.list(agent.id, order="asc", limit=2))
    assert every[0].message_type == "system_message"
    assert [message.content for message in every if message.message_type == "user_message"] == [
        "Question 0",
        "Question 1",
        "Question 2",
    ]
    assert len({message.id for message in every}) == len(every)
    answers = lab.client.agents.messages.list(agent.id, include_return_message_types=["assistant_message"])
    assert [message.message_type for message in answers.items] == ["assistant_message"] * 3
    newest = lab.client.messages.list(limit=1)
    assert newest[0].content == "Answer 2."  # type: ignore[union-attr]
    (one,) = lab.client.messages.retrieve(every[1].id)
    assert one == every[1]


@drives("agents.messages.cancel")
def cancel(lab: Lab) -> None:
    agent = lab.agent()
    with pytest.raises(letta_client.ConflictError, match="No active runs"):
        lab.client.agents.messages.cancel(agent.id)
    lab.fake.script = lambda _: hang()
    run_id = lab.client.agents.messages.create_async(agent.id, input="Hi").id
    assert lab.client.agents.messages.cancel(agent.id) == {run_id: "cancelled"}
    run = ended(lab, run_id)
    assert (run.status, run.stop_reason) == ("cancelled", "cancelled")
    assert lab.client.agents.messages.cancel(agent.id, run_ids=[run_id]) == {run_id: "failed"}, "it has ended"


@drives("agents.messages.reset", "agents.messages.compact")
def reset(lab: Lab) -> None:
    agent = lab.agent()
    for number in range(6):
        lab.client.agents.messages.create(agent.id, input=f"Question {number}")
    lab.fake.script = lambda _: "They talked."
    result = lab.client.agents.messages.compact(agent.id, compaction_settings={"mode": "all"})
    assert "They talked." in result.summary
    shown = [message for message in lab.client.agents.messages.list(agent.id) if "They talked." in str(message)]
    assert [message.message_type for message in shown] == ["user_message"]
    assert result.num_messages_before > result.num_messages_after
    state = lab.client.agents.messages.reset(agent.id)
    assert len(state.message_ids or ()) == 1
    assert len(list(lab.client.agents.messages.list(agent.id, order="asc"))) > 12, "recall keeps them"
    with pytest.raises(letta_client.BadRequestError):
        lab.client.agents.messages.compact(agent.id)


@drives("runs.messages.stream", "runs.messages.list", "runs.steps.list", "runs.trace.retrieve")
def approvals(lab: Lab) -> None:
    agent = lab.agent()
    lab.fake.script = [Reply(tool_calls=[("weather", {"city": "Bonn"})]), "Rain."]
    asked = lab.client.agents.messages.create(agent.id, input="Weather?", client_tools=[WEATHER])  # type: ignore[list-item]
    request = asked.messages[-1]
    assert (request.message_type, asked.stop_reason.stop_reason) == ("approval_request_message", "requires_approval")
    call = request.tool_call  # type: ignore[union-attr]
    assert (call.name, call.arguments) == ("weather", '{"city": "Bonn"}')
    pending = lab.client.agents.retrieve(agent.id, include=["agent.pending_approval"]).pending_approval
    assert pending is not None
    assert pending.id == request.id
    with pytest.raises(letta_client.ConflictError, match="approve or deny the pending request"):
        lab.client.agents.messages.create(agent.id, input="Hello?")
    returned = {"type": "tool", "tool_call_id": call.tool_call_id, "status": "success", "tool_return": "Rain, 9 °C"}
    approval = {"type": "approval", "approvals": [returned]}
    done = lab.client.agents.messages.create(agent.id, messages=[approval], client_tools=[WEATHER])  # type: ignore[list-item]
    assert done.messages[-1].content == "Rain."  # type: ignore[union-attr]
    run_id = str(done.messages[-1].run_id)
    found = list(lab.client.runs.messages.list(run_id))
    assert [message.message_type for message in found][-2:] == ["tool_return_message", "assistant_message"]
    (step,) = lab.client.runs.steps.list(run_id)
    spans = lab.client.runs.trace.retrieve(run_id)
    assert [span["SpanName"] for span in spans] == ["agent_run", "time_to_first_token", "agent_step"]
    assert {span["TraceId"] for span in spans} == {spans[0]["TraceId"]}
    assert [span["ParentSpanId"] for span in spans] == ["", spans[0]["SpanId"], spans[0]["SpanId"]]
    assert spans[2]["SpanAttributes"]["step.id"] == step.id  # type: ignore[index]
    assert lab.client.runs.trace.retrieve(run_id, limit=1) == spans[:1]
    with pytest.raises(letta_client.UnprocessableEntityError, match="limit"):
        lab.client.runs.trace.retrieve(run_id, limit=0)
    streamed = [chunk.message_type for chunk in lab.client.runs.messages.stream(run_id)]
    assert streamed[-2:] == ["stop_reason", "usage_statistics"]


@drives("messages.search")
def search(lab: Lab) -> None:
    agent = lab.agent()
    lab.fake.script = lambda _: "Noted."
    lab.client.agents.messages.create(agent.id, input="The xylophone is in the attic.")
    hits = lab.client.messages.search(query="xylophone")
    assert "xylophone" in str(hits[0].content)  # type: ignore[union-attr]
    with pytest.raises(letta_client.UnprocessableEntityError):
        lab.client.messages.search(query=1)  # type: ignore[arg-type]
