"""MCP servers that refuse, redirect, hang or end."""

import asyncio
import gc
from pathlib import Path

import pytest
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.mcp_server import ECHO, running
from mnemesh_testkit.timeouts import growing, scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits

from ..conftest import Stubs, serve
from .remote_calls import HTTP, created, run_tool, server_at

SECRET = "canary-token-0123456789"


async def test_a_server_that_refuses_or_redirects_is_a_result(embedded: Stubs) -> None:
    async with running(token=SECRET) as remote, running() as elsewhere:
        wrong = "wrong-token-9876543210"
        server = await created(embedded, server_at(remote, token=wrong))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "401" in server.status_message
        assert wrong not in server.status_message
        error = await catch_refusal(embedded.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id)))
        assert error.reason == "MCP_SERVER_UNREACHABLE"
        tested = await embedded.mcp.TestMcpServer(
            rpc.TestMcpServerRequest(mcp_server=server_at(remote, name="", token=SECRET))
        )
        assert [tool.name for tool in tested.tools] == ["echo"]
        assert tested.protocol_version
        elsewhere.token, remote.location = SECRET, elsewhere.url
        tested = await embedded.mcp.TestMcpServer(
            rpc.TestMcpServerRequest(mcp_server=server_at(remote, name="", token=SECRET))
        )
        assert (tested.status, elsewhere.headers) == (pb.MCP_SERVER_STATUS_UNREACHABLE, [])
        assert "edirect" in tested.status_message
    tested = await embedded.mcp.TestMcpServer(rpc.TestMcpServerRequest(mcp_server_id=server.id))
    assert tested.status == pb.MCP_SERVER_STATUS_UNREACHABLE


async def test_a_server_that_hangs_is_bounded(embedded: Stubs) -> None:
    async with running(tools={"hang": {"type": "object"}}) as remote:
        server = await created(embedded, server_at(remote))
        for seconds in growing(0.2):
            error = await catch_refusal(run_tool(embedded, server, "hang", seconds=seconds))
            if remote.entered.is_set():
                break
        assert error.reason == "DEADLINE_EXCEEDED"
        await asyncio.wait_for(remote.cancelled.wait(), scaled(60))
        remote.cancelled.clear()
        remote.entered.clear()
        call = asyncio.ensure_future(run_tool(embedded, server, "hang"))
        await asyncio.wait_for(remote.entered.wait(), scaled(60))
        call.cancel()
        await asyncio.wait_for(remote.cancelled.wait(), scaled(60))
        remote.hangs = True
        request = rpc.TestMcpServerRequest(mcp_server_id=server.id)
        tested = await embedded.mcp.TestMcpServer(request, timeout=scaled(2.0))  # half of it is left for the answer
        assert tested.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "seconds" in tested.status_message


async def test_the_creation_of_a_server_that_hangs_is_bounded_and_leaves_no_unread_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what earlier tests have left is not of interest
    caplog.clear()
    config = Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0)
    async with serve(config, McpLimits(create_seconds=0.5)) as stubs, running(tools={"echo": ECHO}) as remote:
        remote.hangs = True
        server = await created(stubs, server_at(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "seconds" in server.status_message
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("kind", [HTTP, "sse"])
async def test_a_session_recovers_and_a_broken_call_is_not_repeated(embedded: Stubs, kind: str) -> None:
    async with running(kind, tools={"echo": ECHO, "die": {"type": "object"}}) as remote:
        server = await created(embedded, server_at(remote, kind))
        for _ in range(2):
            await run_tool(embedded, server, "echo", '{"text": "a"}')
        before = remote.connections
        error = await catch_refusal(run_tool(embedded, server, "die", request_id="deadly"))
        assert (error.reason, [name for name, _ in remote.calls].count("die")) == ("ABORTED", 1)
        again = await catch_refusal(run_tool(embedded, server, "die", request_id="deadly"))
        assert (again.reason, [name for name, _ in remote.calls].count("die")) == ("ABORTED", 1)
        await remote.stop()
        unreachable = await catch_refusal(run_tool(embedded, server, "echo", '{"text": "b"}', request_id="later"))
        assert unreachable.reason == "MCP_SERVER_UNREACHABLE", unreachable.message
        await remote.start(kind)
        answer = await run_tool(embedded, server, "echo", '{"text": "b"}', request_id="later")
        assert answer.content[0].text.text == '{"text": "b"}'
        assert remote.connections > before


@pytest.mark.parametrize("kind", [HTTP, "sse"])
async def test_a_server_that_cannot_be_reached_is_named_by_its_address_and_the_reason(
    embedded: Stubs, kind: str
) -> None:
    for url, text in (
        ("http://127.0.0.1:1/mcp?key=canary", "The MCP server cannot be reached: 127.0.0.1:1: connection refused."),
        (
            "http://nowhere.invalid/mcp",
            "The MCP server cannot be reached: nowhere.invalid:80: the name of the host is not known.",
        ),
    ):
        transport = {kind: pb.SseTransport(url=url) if kind == "sse" else pb.StreamableHttpTransport(url=url)}
        request = rpc.TestMcpServerRequest(mcp_server=pb.McpServer(**transport))
        assert (await embedded.mcp.TestMcpServer(request)).status_message == text
