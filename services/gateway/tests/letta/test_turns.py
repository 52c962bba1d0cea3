"""Turns over Letta's API beside the plain ones: pings, images, returns of tools, numbers of events, cancels."""

import asyncio
import base64
import json
import threading
from typing import Any

import httpx
import letta_client
import pytest
from mnemesh_gateway.letta import turns
from mnemesh_testkit.fakes.server import Reply, hang, status
from mnemesh_testkit.timeouts import scaled

from .conftest import FakedMesh
from .drivers.agent_messages import WEATHER, ended
from .lab import MODEL, Lab

IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


def events(lab: Lab, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the events of a stream up to [DONE]."""
    found: list[dict[str, Any]] = []
    with httpx.stream("POST", f"{lab.client.base_url}/v1{path}", json=body, timeout=scaled(60)) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: ")))
    return found


def test_a_silent_stream_has_pings(lab: Lab, faked: FakedMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PING_SECONDS", 0.5)
    agent = lab.agent()
    gate = asyncio.Event()
    lab.fake.script = lambda _: Reply(text="One two three.", gates=[gate])
    url = f"{lab.client.base_url}/v1/agents/{agent.id}/messages/stream"
    seen: list[dict[str, Any]] = []
    with httpx.stream("POST", url, json={"input": "Count"}, timeout=scaled(60)) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            seen.append(json.loads(line.removeprefix("data: ")))
            if [event["message_type"] for event in seen] == ["ping"] * 3:
                faked.thread.run(_set(gate))
    kinds = [event["message_type"] for event in seen]
    assert [kind for kind in kinds if kind != "ping"] == ["assistant_message", "stop_reason", "usage_statistics"]
    spoken = next(event for event in seen if event["message_type"] == "assistant_message")
    assert {event["run_id"] for event in seen if event["message_type"] == "ping"} == {spoken["run_id"]}
    quiet = events(lab, f"/agents/{agent.id}/messages/stream", {"input": "Count", "include_pings": False})
    assert "ping" not in [event["message_type"] for event in quiet]


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
def test_a_stream_names_its_run_before_the_model_answers(lab: Lab, faked: FakedMesh) -> None:
    agent = lab.agent()
    gate = asyncio.Event()
    lab.fake.script = lambda _: Reply(text="One two three.", gates=[gate])
    with lab.client.agents.messages.stream(agent.id, input="Count") as stream:
        announced = next(stream)
        assert announced.message_type == "ping"
        assert lab.client.runs.retrieve(announced.run_id).status == "running"  # type: ignore[union-attr, arg-type]
        faked.thread.run(_set(gate))
        rest = [event.message_type for event in stream]
    assert rest == ["assistant_message", "stop_reason", "usage_statistics"]


@pytest.mark.parametrize("pings", [True, False])
def test_a_refusal_of_the_model_is_an_event_once_the_run_is_announced(lab: Lab, pings: bool) -> None:
    agent = lab.agent()
    lab.fake.script = [status(400, "No such parameter.")]
    body = {"input": "Hello.", "include_pings": pings}
    url = f"{lab.client.base_url}/v1/agents/{agent.id}/messages/stream"
    with httpx.stream("POST", url, json=body, timeout=scaled(60)) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.status_code == (200 if pings else 400)
    found = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    kinds = [event["message_type"] for event in found]
    assert kinds == (["ping", "stop_reason", "error_message"] if pings else [])


async def _set(gate: asyncio.Event) -> None:
    gate.set()


def test_an_image_reaches_the_model_and_the_history(lab: Lab) -> None:
    agent = lab.agent()
    source = {"type": "base64", "media_type": "image/png", "data": IMAGE}
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    lab.client.agents.messages.create(agent.id, messages=[{"role": "user", "content": content}])  # type: ignore[list-item]
    parts = lab.fake.requests[-1].body["messages"][-1]["content"]
    assert [part["image_url"]["url"] for part in parts if part["type"] == "image_url"] == [
        f"data:image/png;base64,{IMAGE}"
    ]
    rows = lab.client.agents.messages.list(agent.id, include_return_message_types=["user_message"]).items
    (image,) = [part for part in rows[-1].content if part.type == "image"]  # type: ignore[union-attr]
    assert image.source.data == IMAGE  # type: ignore[union-attr]


def test_a_message_with_returns_of_client_tools_answers_the_request(lab: Lab) -> None:
    agent = lab.agent()
    lab.fake.script = [Reply(tool_calls=[("weather", {"city": "Bonn"})]), "Rain."]
    tools = {"client_tools": [WEATHER]}
    asked = lab.client.agents.messages.create(agent.id, input="Weather?", **tools)  # type: ignore[arg-type]
    call_id = asked.messages[-1].tool_call.tool_call_id  # type: ignore[union-attr]
    returned = {"type": "tool", "tool_call_id": call_id, "status": "success", "tool_return": "9 °C"}
    message = {"type": "tool_return", "tool_returns": [returned]}
    done = lab.client.agents.messages.create(agent.id, messages=[message], **tools)  # type: ignore[arg-type, list-item]
    assert done.messages[-1].content == "Rain."  # type: ignore[union-attr]
    assert "9 °C" in str(lab.fake.requests[-1].body["messages"][-1]["content"])


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("tokens", [False, True])
def test_a_number_is_the_same_event_in_every_stream_of_a_run(lab: Lab, tokens: bool) -> None:
    agent = lab.agent()
    answer = Reply(text="One two three four five.", reasoning="Count.", tool_calls=[("conversation_search", {})])
    lab.fake.script = [answer, "Done."]
    only = {"include_return_message_types": ["assistant_message"]}
    body = {"input": "Count", "background": True, "stream_tokens": tokens, **only}
    live = events(lab, f"/agents/{agent.id}/messages/stream", body)
    run_id = live[0]["run_id"]
    ended(lab, run_id)
    whole = events(lab, f"/runs/{run_id}/stream", {})
    numbers = [event["seq_id"] for event in whole]
    assert numbers == list(range(1, len(whole) + 1))
    shown = {"ping", "assistant_message", "stop_reason", "usage_statistics"}
    assert live == [event for event in whole if event["message_type"] in shown]
    for number in numbers:
        assert events(lab, f"/runs/{run_id}/stream", {"starting_after": number}) == whole[number:]


def test_an_answer_to_a_request_begins_with_the_return_and_is_in_the_history(lab: Lab) -> None:
    agent = lab.agent()
    tools: Any = {"client_tools": [WEATHER]}

    def asked(**more: str) -> dict[str, Any]:
        lab.fake.script = [Reply(tool_calls=[("weather", {"city": "Bonn"})]), "Rain."]
        call: Any = lab.client.agents.messages.create(agent.id, input="Weather?", **tools).messages[-1]
        returned = {"type": "tool", "tool_call_id": call.tool_call.tool_call_id, "tool_return": "9 °C", **more}
        return {"messages": [{"type": "approval", "approvals": [returned]}], **tools}

    kinds = ["tool_return_message", "assistant_message"]
    done = lab.client.agents.messages.create(agent.id, **asked())
    assert [message.message_type for message in done.messages] == kinds
    assert done.messages[0].status == "success"  # type: ignore[union-attr]
    failed = asked(status="error") | {"stream_tokens": True}
    streamed = events(lab, f"/agents/{agent.id}/messages/stream", failed)
    assert list(dict.fromkeys(event["message_type"] for event in streamed))[:3] == ["ping", *kinds]
    assert [event["status"] for event in streamed if event["message_type"] == kinds[0]] == ["error"]
    replayed = events(lab, f"/runs/{streamed[0]['run_id']}/stream", {})
    assert [event["message_type"] for event in replayed[:2]] == ["ping", "tool_return_message"]
    rows = [message.message_type for message in lab.client.agents.messages.list(agent.id).items]
    assert rows[-3:] == ["approval_response_message", *kinds]


def test_the_returns_of_parallel_calls_are_one_message_in_their_order(lab: Lab) -> None:
    agent = lab.agent(model_settings={"provider_type": "openai", "parallel_tool_calls": True}, include_base_tools=True)
    calls = [("memory", {"command": "view"}), ("conversation_search", {"query": "tea"}), ("nothing", {})]
    lab.fake.script = [Reply(tool_calls=calls), "Done."]
    done: Any = lab.client.agents.messages.create(agent.id, input="Look.").messages
    assert [message.message_type for message in done] == [
        "tool_call_message",
        "tool_return_message",
        "assistant_message",
    ]
    call_ids = [call.tool_call_id for call in done[0].tool_calls]
    assert len(call_ids) == 3
    assert [returned.tool_call_id for returned in done[1].tool_returns] == call_ids
    assert done[1].tool_call_id == call_ids[0], "what older clients read is the first"
    (stored,) = lab.client.agents.messages.list(agent.id, include_return_message_types=["tool_return_message"]).items
    assert stored.tool_returns == done[1].tool_returns  # type: ignore[union-attr]


def test_skills_of_the_client_reach_the_model_and_are_not_stored(lab: Lab) -> None:
    agent = lab.agent()
    skill = {"name": "review", "description": "Reads a diff.", "location": "/skills/review.md"}
    lab.client.agents.messages.create(agent.id, input="Hi", client_skills=[skill])  # type: ignore[list-item]
    assert "- review (/skills/review.md): Reads a diff." in lab.fake.requests[-1].body["messages"][0]["content"]
    lab.client.agents.messages.create(agent.id, input="Hi")
    assert "review" not in lab.fake.requests[-1].body["messages"][0]["content"]
    with pytest.raises(letta_client.UnprocessableEntityError, match="client_skills"):
        lab.client.agents.messages.create(agent.id, input="Hi", extra_body={"client_skills": [{"name": "review"}]})


def test_a_message_with_the_otid_of_an_earlier_one_is_a_new_message(lab: Lab) -> None:
    agent = lab.agent()
    hello: Any = {"role": "user", "content": "Hello", "otid": "otid-1"}
    runs = {lab.client.agents.messages.create(agent.id, messages=[hello]).messages[0].run_id for _ in range(2)}
    assert len(runs) == 2
    other = lab.client.agents.messages.create(agent.id, messages=[hello | {"content": "Bye"}])
    assert other.messages[0].run_id not in runs
    rows = lab.client.agents.messages.list(agent.id, include_return_message_types=["user_message"]).items
    assert [row.otid for row in rows] == ["otid-1"] * 3
    conversation = lab.client.conversations.create(agent_id=agent.id)
    first, again = (
        list(lab.client.conversations.messages.create(conversation.id, messages=[hello], background=True))
        for _ in range(2)
    )
    assert again == first, "a background stream of a conversation is recovered"


def test_a_decision_is_in_the_fields_of_older_clients_as_well(lab: Lab) -> None:
    agent = lab.agent(include_base_tools=True)
    lab.client.agents.tools.update_approval("conversation_search", agent_id=agent.id, body_requires_approval=True)
    lab.fake.script = [Reply(tool_calls=[("conversation_search", {"query": "tea"})]), "Fine."]
    request: Any = lab.client.agents.messages.create(agent.id, input="Search.").messages[-1]
    call_id = request.tool_call.tool_call_id
    denied: Any = {"type": "approval", "tool_call_id": call_id, "approve": False, "reason": "No."}
    lab.client.agents.messages.create(agent.id, messages=[{"type": "approval", "approvals": [denied]}])
    only = ["approval_response_message"]
    (answer,) = lab.client.agents.messages.list(agent.id, include_return_message_types=only).items  # type: ignore[arg-type]
    shown: Any = answer
    assert (shown.approval_request_id, shown.approve, shown.reason) == (call_id, False, "No.")


@pytest.mark.parametrize(
    "text",
    ['{"type": ' + "[" * 2_000 + "]" * 2_000 + "}", '{"message": ' + "[" * 990 + "]" * 990 + "}"],
    ids=["no-event", "no-envelope"],
)
def test_json_that_is_nested_deeply_is_a_message_like_others(lab: Lab, text: str) -> None:
    agent, messages = lab.agent(), lab.client.agents.messages
    for words in (text, "And now?"):
        assert messages.create(agent.id, input=words).stop_reason.stop_reason == "end_turn"
    file = lab.client.agents.export_file(agent.id)
    (copy,) = lab.client.agents.import_file(file=("deep.af", file.encode())).agent_ids
    said = [message.content for message in messages.list(copy, order="asc") if message.message_type == "user_message"]
    assert said == [text, "And now?"]


def test_the_own_conversation_is_named_by_the_agent_in_the_body(lab: Lab) -> None:
    agent = lab.agent()
    called, gate = threading.Event(), asyncio.Event()

    def answer(_: Any) -> Reply:
        called.set()
        return Reply(text="Hello.", gates=[gate])

    lab.fake.script = answer
    with pytest.raises(letta_client.BadRequestError, match="No active runs found"):
        lab.client.conversations.messages.stream("default", agent_id=agent.id)
    run = lab.client.agents.messages.create_async(agent.id, input="Hi")
    assert called.wait(scaled(60))
    with lab.client.conversations.messages.stream("default", agent_id=agent.id) as followed:
        lab.run(_set(gate))
        assert {event.run_id for event in followed if event.message_type == "assistant_message"} == {run.id}
    text = lab.client.conversations.recompile("default", agent_id=agent.id, dry_run=True)
    assert "Ada." in text


def test_a_turn_that_is_cancelled_answers_its_client(lab: Lab) -> None:
    agent = lab.agent()
    called = threading.Event()

    def answer(_: Any) -> Any:
        called.set()
        return hang()

    lab.fake.script = answer
    answers: list[Any] = []
    sender = threading.Thread(
        target=lambda: answers.append(lab.client.agents.messages.create(agent.id, input="Hi")), daemon=True
    )
    sender.start()
    assert called.wait(scaled(60))
    (run,) = lab.client.runs.list(agent_id=agent.id, active=True)
    for query, expected in (({"agent_ids": agent.id}, [run.id]), ({"agent_ids": lab.agent().id}, [])):
        active: Any = lab.client.get("/v1/runs/active", cast_to=object, options={"params": query})
        assert [each["id"] for each in active] == expected
    cancelled: Any = lab.client.post(f"/v1/runs/{run.id}/cancel", cast_to=object)
    assert cancelled["id"] == run.id
    sender.join(scaled(60))
    assert [each.stop_reason.stop_reason for each in answers] == ["cancelled"]
    lab.fake.script = lambda _: "Hello."
    done = lab.client.agents.messages.create(agent.id, input="Hi")
    metrics: Any = lab.client.get(f"/v1/runs/{done.messages[0].run_id}/metrics", cast_to=object)
    assert metrics["num_steps"] == 1
    assert metrics["run_ns"] > 0


def test_a_run_remembers_which_types_of_messages_it_returns(lab: Lab) -> None:
    agent, runs = lab.agent(), lab.client.runs
    types: list[Any] = ["assistant_message"]
    run = lab.client.agents.messages.create_async(agent.id, input="Hi.", include_return_message_types=types)
    ended(lab, run.id)
    config = runs.retrieve(run.id).request_config
    assert config is not None
    assert config.include_return_message_types == types
    assert [message.message_type for message in runs.messages.list(run.id)] == types
    plain = lab.client.agents.messages.create_async(agent.id, input="Hi.")
    ended(lab, plain.id)
    assert "user_message" in [message.message_type for message in runs.messages.list(plain.id)]
    with pytest.raises(letta_client.UnprocessableEntityError, match="include_return_message_types"):
        lab.client.agents.messages.create(agent.id, input="Hi.", include_return_message_types=["poem"])  # type: ignore[list-item]


def test_usage_has_the_tokens_of_the_context_after_the_last_step(lab: Lab) -> None:
    agent = lab.client.agents.create(model=MODEL)
    lab.fake.script = [Reply(tool_calls=[("conversation_search", {"query": "x"})]), Reply(text="Nothing.")]
    usage = lab.client.agents.messages.create(agent.id, input="Search.").usage
    assert (usage.step_count, usage.total_tokens, usage.context_tokens) == (2, 36, 18)
    lab.fake.script = lambda _: "Hello."
    last = list(lab.client.agents.messages.create(agent.id, input="Hi.", streaming=True))[-1]
    assert (last.message_type, last.context_tokens) == ("usage_statistics", 18)  # type: ignore[union-attr]
