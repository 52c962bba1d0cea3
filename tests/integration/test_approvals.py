"""Tool calls that wait for approval: what recall stores, what the provider receives, and which events a client gets."""

from typing import Any

import pytest
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, approve, deny, returned
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import window_of

MODEL = "openai/fake-model"
KEEP = "archival_memory_insert"


async def create(mesh: Mesh, **options: Any) -> Agent:
    agent = await mesh.client.agents.create(model=MODEL, blocks={"human": ""}, **options)
    return await agent.set_tool_approval(KEEP)


async def told(events: Any) -> list[runs_pb2.RunEvent]:
    return [event async for event in events]


def asked(events: list[runs_pb2.RunEvent]) -> list[message_pb2.ToolCall]:
    return [
        call
        for event in events
        if event.HasField("message") and event.message.HasField("approval_request")
        for call in event.message.approval_request.tool_calls
    ]


async def test_answer_with_gated_calls_waits_and_continues_after_the_decision(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    agent = await create(mesh)
    fake_openai.script = [
        Reply(
            tool_calls=[
                Call("memory_insert", {"label": "human", "new_str": "Ada"}),
                Call(KEEP, {"content": "one"}),
                Call(KEEP, {"content": "two"}),
            ]
        ),
        "Kept one.",
    ]
    first = await told(agent.send("Keep both."))
    assert next(event.stop for event in first if event.HasField("stop")).reason == (
        agents_pb2.STOP_REASON_REQUIRES_APPROVAL
    )
    one, two = asked(first)
    window = list(await window_of(mesh.client, agent))
    assert [message.role for message in window[-2:]] == [message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_APPROVAL]
    assert len(window[-2].tool_calls) == 3
    await agent.refresh()
    assert agent.proto.pending_approval_request_id == window[-1].id
    assert agent.proto.last_stop_reason == agents_pb2.STOP_REASON_REQUIRES_APPROVAL
    with pytest.raises(FailedPrecondition) as refused:
        await told(agent.send("And?"))
    assert (refused.value.reason, refused.value.metadata["approval_request_id"]) == ("PENDING_APPROVAL", window[-1].id)
    with pytest.raises(InvalidArgument) as wrong:
        await told(agent.answer([approve(one.id)]))
    assert wrong.value.reason == "APPROVAL_MISMATCH"
    assert wrong.value.metadata["expected"] == f"{one.id},{two.id}"

    events = await told(agent.answer([approve(one.id), deny(two.id, "too much")], "And greet me."))
    kinds = [event.message.WhichOneof("message") for event in events if event.HasField("message")]
    assert kinds == ["user", "approval_response", "tool_return", "tool_return", "tool_return", "assistant"]
    assert [passage.text async for passage in agent.passages()] == ["one"]
    request = fake_openai.requests[-1].body["messages"]
    assert [message["role"] for message in request] == ["system", "user", "assistant", "tool", "tool", "tool", "user"]
    assert [call["id"] for call in request[2]["tool_calls"]] == [message["tool_call_id"] for message in request[3:6]]
    assert "User reason: too much" in request[5]["content"]
    again = await told(agent.answer([approve(one.id), deny(two.id, "too much")]))
    assert again[0].accepted.replayed
    assert again[-1].run_id == events[-1].run_id
    (decision,) = [entry async for entry in mesh.client.audit.list(method="AnswerApproval")]
    assert {agent.id, first[-1].run_id, events[-1].run_id} <= set(decision.resource_ids)
    await agent.refresh()
    assert not agent.proto.HasField("pending_approval_request_id")


async def test_client_tool_is_answered_by_the_client(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [Reply(tool_calls=[Call("open_file", {"path": "a"})]), "It says hello."]
    tool = runs_pb2.ClientTool(name="open_file", parameters='{"properties": {"path": {"type": "string"}}}')
    first = await told(agent.send("Read it.", config=runs_pb2.RunConfig(client_tools=[tool])))
    assert "open_file" in [tool["function"]["name"] for tool in fake_openai.requests[-1].body["tools"]]
    (call,) = asked(first)
    await told(agent.answer([returned(call.id, "hello", stdout=["read"])]))
    window = list(await window_of(mesh.client, agent))
    assert window[-2].tool_returns[0].content[0].text.text == "hello"
    assert list(window[-2].tool_returns[0].stdout) == ["read"]
    assert window[-3].approval_decisions[0].HasField("client_return")
    assert "open_file" in [tool["function"]["name"] for tool in fake_openai.requests[-1].body["tools"]]


async def test_cancellation_of_a_waiting_run_leaves_a_return_for_each_call(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    fake_openai.script = [Reply(tool_calls=[Call(KEEP, {"content": "one"})]), "Hello."]
    first = await told(agent.send("Keep it."))
    outcomes = await mesh.client.runs.cancel(agent_id=agent.id)
    assert list(outcomes) == [first[0].run_id]
    window = list(await window_of(mesh.client, agent))
    assert window[-1].tool_returns[0].status == message_pb2.TOOL_RETURN_STATUS_ERROR
    with pytest.raises(FailedPrecondition) as late:
        await told(agent.answer([approve(asked(first)[0].id)]))
    assert late.value.reason == "NO_PENDING_APPROVAL"
    await told(agent.send("Hello?"))
    roles = [message["role"] for message in fake_openai.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    assert [passage.text async for passage in agent.passages()] == []
