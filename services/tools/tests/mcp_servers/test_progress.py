"""Progress of calls of MCP servers, and the end of a stream of progress."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.mcp_server import Remote, running
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits

from ..conftest import Stubs, serve
from .program import SOURCE

SECRET = "canary-0123456789"


async def _created(stubs: Stubs, remote: Remote, kind: str = "streamable_http") -> pb.McpServer:
    server = pb.McpServer(name="remote")
    getattr(server, kind).url = remote.url
    return (await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=server))).mcp_server


def _stream(stubs: Stubs, server: pb.McpServer, tool: str, arguments: str = "", **fields: Any) -> Any:
    reference = rpc.McpToolReference(name=tool)
    request = rpc.StreamMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=reference,
        arguments=arguments,
        timeout=Duration(seconds=int(scaled(60))),
        **fields,
    )
    return stubs.mcp.StreamMcpServerTool(request)


async def _collected(call: Any) -> tuple[list[rpc.McpProgress], rpc.RunMcpServerToolResponse]:
    responses = [response async for response in call]
    assert [response.WhichOneof("message") for response in responses] == ["progress"] * (len(responses) - 1) + [
        "result"
    ]
    return [response.progress for response in responses[:-1]], responses[-1].result


@pytest.mark.parametrize("kind", ["streamable_http", "sse"])
async def test_progress_arrives_before_the_result(embedded: Stubs, kind: str) -> None:
    async with running(kind, tools={"steps": {"type": "object"}}) as remote:
        server = await _created(embedded, remote, kind)
        progress = []
        async with asyncio.timeout(scaled(60)):
            async for response in _stream(embedded, server, "steps"):
                if response.HasField("progress"):
                    progress.append((response.progress.progress, response.progress.total, response.progress.message))
                    remote.proceed.set()
        assert progress == [(1, 2, "half of it"), (2, 2, "")]
        assert response.result.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS


async def test_the_end_of_the_stream_cancels_the_call_on_the_server(embedded: Stubs) -> None:
    async with running(tools={"hang": {"type": "object"}}) as remote:
        server = await _created(embedded, remote)
        call = _stream(embedded, server, "hang")
        reading = asyncio.ensure_future(call.read())
        async with asyncio.timeout(scaled(60)):
            await remote.entered.wait()
            call.cancel()
            await asyncio.wait({reading})
            await remote.cancelled.wait()


async def test_a_repeated_stream_returns_the_first_result(embedded: Stubs) -> None:
    async with running(tools={"steps": {"type": "object"}}) as remote:
        server = await _created(embedded, remote)
        remote.proceed.set()
        _, first = await _collected(_stream(embedded, server, "steps", request_id="one"))
        again, second = await _collected(_stream(embedded, server, "steps", request_id="one"))
        assert (again, second, len(remote.calls)) == ([], first, 1)


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [("missing", "", "NOT_FOUND"), ("echo", "[]", "TOOL_ARGUMENTS_INVALID"), ("echo", "{}", "TOOL_ARGUMENTS_INVALID")],
)
async def test_a_refused_stream_has_the_error_of_a_run(embedded: Stubs, tool: str, arguments: str, reason: str) -> None:
    async with running() as remote:
        server = await _created(embedded, remote)
        error = await catch_refusal(_collected(_stream(embedded, server, tool, arguments)))
        assert (error.reason, remote.calls) == (reason, [])


async def _reported(tmp_path: Path, values: Sequence[dict[str, Any]]) -> list[rpc.McpProgress]:
    """Returns the progress of a call of a program that reports these values."""
    config = Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0)
    env = [pb.McpSecret(name="TOKEN", value=SECRET)]
    transport = pb.StdioTransport(command="python3", args=["-c", SOURCE], env=env)
    async with serve(config, McpLimits(connect_seconds=scaled(60))) as stubs:
        created = rpc.CreateMcpServerRequest(mcp_server=pb.McpServer(name="program", stdio=transport))
        server = (await stubs.mcp.CreateMcpServer(created)).mcp_server
        assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
        arguments = json.dumps({"values": json.dumps(values)})
        progress, result = await _collected(_stream(stubs, server, "report", arguments))
        assert result.content[0].text.text == "done"
    return progress


@pytest.mark.full
async def test_a_flood_of_progress_is_reduced_to_the_newest(tmp_path: Path) -> None:
    progress = await _reported(tmp_path, [{"progress": number, "total": 5_000} for number in range(1, 5_001)])
    numbers = [item.progress for item in progress]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 5_000
    assert len(numbers) < 1_000


@pytest.mark.parametrize(
    ("value", "shown"),
    sampled(
        [
            ({"progress": 1, "total": float("inf")}, rpc.McpProgress(progress=1)),
            ({"progress": float("nan")}, None),
            ({"progress": 1, "message": "x" * 9_000}, rpc.McpProgress(progress=1, message="x" * 200)),
            ({"progress": 1, "message": "a\x1b[2Jb\r\nc\u202e"}, rpc.McpProgress(progress=1, message="a [2Jb c")),
            ({"progress": 1, "message": "\ud800"}, None),
            ({"progress": 1, "message": f"with {SECRET}"}, rpc.McpProgress(progress=1, message="with [secret TOKEN]")),
            ({"progress": 1, "message": "\n"}, rpc.McpProgress(progress=1)),
            ({"progress": "half"}, None),
        ],
        3,
    ),
)
async def test_unusual_progress_is_cleaned_or_left_out(
    tmp_path: Path, value: dict[str, Any], shown: rpc.McpProgress | None
) -> None:
    assert await _reported(tmp_path, [value]) == ([] if shown is None else [shown])
