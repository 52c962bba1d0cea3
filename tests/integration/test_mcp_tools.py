"""Tools of MCP servers in turns."""

import asyncio
from collections.abc import Iterable

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import runs_pb2
from mnemesh.tools.v1 import mcp_servers_pb2, tools_pb2, tools_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Mnemesh, approve, deny
from mnemesh_client.mcp_servers import Transport
from mnemesh_testkit.fakes.mcp_server import ECHO, running
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import Turn, assert_whole, collect, tool_texts, turn, window_of
from mnemesh_testkit.timeouts import scaled

MODEL = "openai/fake-model"
REACHABLE = mcp_servers_pb2.MCP_SERVER_STATUS_REACHABLE
ERROR = message_pb2.TOOL_RETURN_STATUS_ERROR


async def _tool_ids(client: Mnemesh, server: mcp_servers_pb2.McpServer) -> dict[str, str]:
    return {tool.name: tool.tool_id async for tool in client.mcp_servers.tools(server.id)}


def _asked(result: Turn) -> list[message_pb2.ToolCall]:
    """Returns the calls that wait for an approval."""
    return [
        call
        for event in result.events
        if event.HasField("message") and event.message.HasField("approval_request")
        for call in event.message.approval_request.tool_calls
    ]


@pytest.mark.parametrize("transport", ["streamable_http", "sse"])
async def test_an_agent_calls_a_tool_of_a_server(mesh: Mesh, fake_openai: FakeOpenAI, transport: Transport) -> None:
    async with running(transport, tools={"echo": ECHO, "picture": {"type": "object"}}) as remote:
        server = await mesh.client.mcp_servers.create("remote", remote.url, transport=transport)
        assert server.status == REACHABLE, server.status_message
        agent = await mesh.client.agents.create(
            model="openai/gpt-4o", tools=list((await _tool_ids(mesh.client, server)).values())
        )
        calls = [("echo", {"text": "a"}), ("picture", {})]
        fake_openai.script = [Reply(tool_calls=[calls[0]]), Reply(tool_calls=[calls[1]]), "Done."]
        result = await turn(agent, "Echo and draw.")
        assert (result.said, [item.status for item in result.returns].count(ERROR)) == ("Done.", 0)
        assert '{\\"text\\": \\"a\\"}' in tool_texts(fake_openai.requests[1].body)[0]
        image = fake_openai.requests[2].body["messages"][-1]["content"][-1]
        assert image["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
        assert remote.headers[-1]["x-agent-id"] == agent.id
        assert_whole(await window_of(mesh.client, agent))


async def test_a_failed_server_is_a_result_for_the_agent(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    tools = {"echo": ECHO, "die": {"type": "object"}, "fail": {"type": "object"}}
    async with running(tools=tools) as remote:
        server = await mesh.client.mcp_servers.create("remote", remote.url)
        ids = await _tool_ids(mesh.client, server)
        # Also an idempotent tool is not repeated for as long as its server stays away.
        change = tools_pb2.Tool(id=ids["echo"], idempotent=True)
        mask = FieldMask(paths=["idempotent"])
        await mesh.client.tools.stub.UpdateTool(tools_service_pb2.UpdateToolRequest(tool=change, update_mask=mask))
        agent = await mesh.client.agents.create(model=MODEL, tools=list(ids.values()))
        fake_openai.script = [Reply(tool_calls=[("fail", {})]), Reply(tool_calls=[("die", {})]), "Done."]
        result = await turn(agent, "Fail.")
        assert [item.status for item in result.returns] == [ERROR, ERROR]
        texts = [item.content[0].text.text for item in result.returns]
        assert "It failed." in texts[0]
        assert "unknown" in texts[1]
        assert [name for name, _ in remote.calls] == ["fail", "die"]
    fake_openai.script = [Reply(tool_calls=[("echo", {"text": "a"})]), "Gone."]
    result = await turn(agent, "Echo.")
    assert result.said == "Gone."
    assert "was not run" in result.returns[0].content[0].text.text


async def test_a_tool_that_requires_approval_runs_once_after_it_and_never_without_it(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    async with running() as remote:
        server = await mesh.client.mcp_servers.create("remote", remote.url)
        ids = await _tool_ids(mesh.client, server)
        change = tools_pb2.Tool(id=ids["echo"], default_requires_approval=True)
        mask = FieldMask(paths=["default_requires_approval"])
        await mesh.client.tools.stub.UpdateTool(tools_service_pb2.UpdateToolRequest(tool=change, update_mask=mask))
        agent = await mesh.client.agents.create(model=MODEL, tools=list(ids.values()))
        fake_openai.script = [
            Reply(tool_calls=[("echo", {"text": "a"}), ("echo", {"text": "b"})]),
            Reply(tool_calls=[("echo", {"text": "c"})]),
            "Done.",
        ]
        asked = await turn(agent, "Echo.")
        assert (asked.stop, remote.calls) == ("REQUIRES_APPROVAL", [])
        first, second = _asked(asked)
        again = await collect(agent.answer([approve(first.id), deny(second.id, "once is enough")]))
        assert remote.calls == [("echo", {"text": "a"})]
        done = await collect(agent.answer([deny(_asked(again)[0].id, "no more")]))
        assert (done.said, remote.calls) == ("Done.", [("echo", {"text": "a"})])
        window = await window_of(mesh.client, agent)
        assert sum(len(message.tool_returns) for message in window) == 3


async def test_the_cancellation_of_a_run_cancels_the_call_on_the_server(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    async with running(tools={"hang": {"type": "object"}}) as remote:
        server = await mesh.client.mcp_servers.create("remote", remote.url)
        agent = await mesh.client.agents.create(
            model=MODEL, tools=list((await _tool_ids(mesh.client, server)).values())
        )
        fake_openai.script = [Reply(tool_calls=[("hang", {})])]
        running_turn = asyncio.create_task(turn(agent, "Hang."))
        async with asyncio.timeout(scaled(30)):
            await remote.entered.wait()
            await mesh.client.runs.cancel(agent_id=agent.id)
            result = await running_turn
            await remote.cancelled.wait()
        assert (result.stop, len(remote.calls)) == ("CANCELLED", 1)
        assert_whole(await window_of(mesh.client, agent))


STEPS = {"steps": {"type": "object"}}
REPORTED = [("steps", 1, 2, "half of it"), ("steps", 2, 2, "")]


def _progress(events: Iterable[runs_pb2.RunEvent]) -> list[tuple[str, float, float, str]]:
    return [
        (item.name, item.progress, item.total, item.message)
        for item in (event.tool_progress for event in events if event.HasField("tool_progress"))
    ]


async def test_the_progress_of_a_call_is_in_the_stream_between_the_call_and_its_return(
    mesh: Mesh, fake_openai: FakeOpenAI
) -> None:
    async with running(tools=STEPS) as remote:
        server = await mesh.client.mcp_servers.create("remote", remote.url)
        tools = list((await _tool_ids(mesh.client, server)).values())
        agent = await mesh.client.agents.create(model=MODEL, tools=tools)
        fake_openai.script = [Reply(tool_calls=[("steps", {})]), "Done."]
        events = []
        async with asyncio.timeout(scaled(60)):
            async for event in agent.send("Count."):
                events.append(event)
                if event.HasField("tool_progress"):
                    remote.proceed.set()
        assert _progress(events) == REPORTED
        kinds = [event.WhichOneof("event") for event in events]
        first, last = kinds.index("tool_progress"), len(kinds) - 1 - kinds[::-1].index("tool_progress")
        (call,) = events[first - 1].message.tool_call.tool_calls
        assert {event.tool_progress.tool_call_id for event in events[first : last + 1]} == {call.id}
        assert events[last + 1].message.tool_return.tool_returns[0].tool_call_id == call.id
        assert not any(event.HasField("sequence") for event in events[first : last + 1])


async def test_a_background_run_replays_the_progress_of_its_calls(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    async with running(tools=STEPS) as remote:
        remote.proceed.set()
        server = await mesh.client.mcp_servers.create("remote", remote.url)
        tools = list((await _tool_ids(mesh.client, server)).values())
        agent = await mesh.client.agents.create(model=MODEL, tools=tools)
        fake_openai.script = [Reply(tool_calls=[("steps", {})]), "Done."]
        run = await mesh.client.runs.start(agent.id, "Count.", config=runs_pb2.RunConfig(stream_tokens=True))
        live = [event async for event in mesh.client.runs.stream(run.id)]
        again = [event async for event in mesh.client.runs.stream(run.id)]
        assert _progress(again)[-1:] == REPORTED[-1:]
        assert _progress(live)[-1:] == REPORTED[-1:]


async def test_a_group_passes_the_progress_of_its_members_on(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    async with running(tools=STEPS) as remote:
        server = await mesh.client.mcp_servers.create("remote", remote.url)
        tools = list((await _tool_ids(mesh.client, server)).values())
        ada = await mesh.client.agents.create(name="ada", model=MODEL, tools=tools)
        bob = await mesh.client.agents.create(name="bob", model=MODEL)
        group = await mesh.client.groups.create([ada.id, bob.id])
        fake_openai.script = [Reply(tool_calls=[("steps", {})]), "Done.", "Fine."]
        events = []
        async with asyncio.timeout(scaled(60)):
            async for item in group.send("Count."):
                events.append(item.event)
                if item.event.HasField("tool_progress"):
                    remote.proceed.set()
        assert _progress(events) == REPORTED
        assert {event.agent_id for event in events if event.HasField("tool_progress")} == {ada.id}
