"""MCP servers over HTTP that have lost their sessions, and errors that only look like it."""

import asyncio

import pytest
from aiohttp import web
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.plugin import sampled

from ..conftest import Stubs
from .remote_calls import run_tool
from .scripted import Answer, Scripted, plain, rpc_error, scripted

ERROR = message_pb2.TOOL_RETURN_STATUS_ERROR


async def _stored(stubs: Stubs, server: Scripted) -> pb.McpServer:
    settings = pb.McpServer(name="scripted", streamable_http=pb.StreamableHttpTransport(url=server.url))
    found = (await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=settings))).mcp_server
    assert found.status == pb.MCP_SERVER_STATUS_REACHABLE, found.status_message
    return found


@pytest.mark.parametrize(
    "refusal",
    sampled(
        [
            rpc_error(404, -32001, "Session not found"),
            rpc_error(404, -32600, "Session not found"),
            rpc_error(400, -32000, "Bad Request: No valid session ID provided"),
            rpc_error(400, -32600, "Bad Request: Missing session ID"),
            rpc_error(400, -32602, "Invalid session"),
            rpc_error(400, -32000, "Bad Request: Server not initialized"),
            rpc_error(200, -32001, "Session not found."),
            rpc_error(200, -32000, "Session expired"),
            plain(404),
            plain(404, "session not found"),
            plain(400, "No valid session"),
            plain(401),
            plain(403, "forbidden"),
            plain(410),
            plain(421),
        ],
        4,
    ),
)
async def test_a_restarted_server_is_called_again_in_a_new_session(embedded: Stubs, refusal: Answer) -> None:
    async with scripted(refusal=refusal) as remote:
        server = await _stored(embedded, remote)
        await run_tool(embedded, server, "echo", '{"text": "a"}')
        remote.restart()
        answer = await run_tool(embedded, server, "echo", '{"text": "b"}', request_id="once")
        assert answer.content[0].text.text == '{"text": "b"}'
        assert remote.runs == 2


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (rpc_error(200, -32001, "Request timed out"), "Request timed out"),
        (rpc_error(200, -32000, "The database is locked"), "The database is locked"),
        (rpc_error(400, -32602, "Unknown argument: x"), "Unknown argument: x"),
        (plain(429, "slow down"), "HTTP 429"),
        (plain(413), "HTTP 413"),
        (plain(500), "HTTP 500"),
    ],
)
async def test_an_error_of_a_call_is_a_result_and_is_not_repeated(embedded: Stubs, answer: Answer, text: str) -> None:
    asked = 0

    def counted(request: web.Request, body: dict[str, object]) -> object:
        nonlocal asked
        asked += 1
        return answer(request, body)

    async with scripted() as remote:
        server = await _stored(embedded, remote)
        await run_tool(embedded, server, "echo")
        remote.answer = counted
        result = await run_tool(embedded, server, "echo")
        assert (result.status, asked) == (ERROR, 1)
        assert text in result.content[0].text.text
        remote.answer = lambda _, __: None
        assert (await run_tool(embedded, server, "echo")).status != ERROR
        assert len(remote.sessions) == 2, "one of the refresh, and one of all calls"


async def test_a_server_that_refuses_each_session_is_unreachable_and_ran_nothing(embedded: Stubs) -> None:
    async with scripted(answer=plain(404)) as remote:
        server = await _stored(embedded, remote)
        for _ in range(2):
            error = await catch_refusal(run_tool(embedded, server, "echo", request_id="same"))
            assert (error.reason, remote.runs) == ("MCP_SERVER_UNREACHABLE", 0)
            assert "404" in error.message
        remote.answer = lambda _, __: None
        await run_tool(embedded, server, "echo", request_id="same")
        assert remote.runs == 1


async def test_a_session_that_ends_behind_an_open_stream_of_events_is_replaced(embedded: Stubs) -> None:
    async with scripted() as remote:
        settings = pb.McpServer(name="sse", sse=pb.SseTransport(url=remote.url.replace("/mcp", "/sse")))
        server = (await embedded.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=settings))).mcp_server
        assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
        await run_tool(embedded, server, "echo")
        remote.restart()
        answer = await run_tool(embedded, server, "echo", '{"text": "b"}')
        assert (answer.content[0].text.text, remote.runs) == ('{"text": "b"}', 2)


async def test_a_refused_call_does_not_end_others_of_its_session(embedded: Stubs) -> None:
    entered, proceed = asyncio.Event(), asyncio.Event()

    async def slowly(request: web.Request, asked: dict[str, object]) -> web.StreamResponse:
        body = {"content": [{"type": "text", "text": "slow"}]}
        entered.set()
        await proceed.wait()
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": body})

    async with scripted(tools=[{"name": name, "inputSchema": {"type": "object"}} for name in ("slow", "no")]) as remote:
        server = await _stored(embedded, remote)

        def answer(request: web.Request, asked: dict[str, dict[str, object]]) -> object:
            return slowly(request, asked) if asked["params"]["name"] == "slow" else plain(403)(request, asked)

        remote.answer = answer
        slow = asyncio.ensure_future(run_tool(embedded, server, "slow"))
        await entered.wait()
        assert (await catch_refusal(run_tool(embedded, server, "no"))).reason == "MCP_SERVER_UNREACHABLE"
        proceed.set()
        assert (await slow).content[0].text.text == "slow"
