"""The reference servers of the protocol, from the public package indexes: in the sandbox, and over HTTP."""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_sandbox import OUTPUT_DIRECTORY, Level
from mnemesh_sandbox.inside.root import WORK_DIRECTORY
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits

from ..conftest import Stubs, serve

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
SUCCESS = message_pb2.TOOL_RETURN_STATUS_SUCCESS
EVERYTHING = "@modelcontextprotocol/server-everything"


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service with the public indexes, whose contacts may reach this host."""
    config = Config(
        port=0,
        data_dir=str(tmp_path),
        min_sandbox="minimal",
        warm_processes=0,
        private_networks="127.0.0.0/8",
        package_wait_seconds=scaled(240),
    )
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine a build of packages")
    limits = McpLimits(connect_seconds=scaled(240), create_seconds=scaled(60))
    async with serve(config, limits) as found:
        yield found


async def _created(stubs: Stubs, name: str, **transport: Any) -> pb.McpServer:
    request = rpc.CreateMcpServerRequest(mcp_server=pb.McpServer(name=name, **transport))
    server = (await stubs.mcp.CreateMcpServer(request)).mcp_server
    if "package index cannot be reached" in server.status_message or "has no npm" in server.status_message:
        pytest.skip(f"the packages of {name} cannot be fetched: {server.status_message}")
    assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
    return server


async def _program(stubs: Stubs, name: str, command: str, *args: str, **fields: Any) -> pb.McpServer:
    env = [pb.McpSecret(name=key, value=value) for key, value in fields.pop("env", {}).items()]
    return await _created(stubs, name, stdio=pb.StdioTransport(command=command, args=args, env=env, **fields))


async def _answered(stubs: Stubs, server: pb.McpServer, tool: str, **arguments: Any) -> str:
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=rpc.McpToolReference(name=tool),
        arguments=json.dumps(arguments),
        timeout=Duration(seconds=int(scaled(60))),
    )
    answer = await stubs.mcp.RunMcpServerTool(request)
    assert answer.status == SUCCESS, answer.content
    return "\n".join(part.text.text for part in answer.content)


async def _tools(stubs: Stubs, server: pb.McpServer) -> set[str]:
    answer = await stubs.mcp.ListMcpServerTools(rpc.ListMcpServerToolsRequest(mcp_server_id=server.id))
    return {tool.name for tool in answer.tools}


async def _require_everything(stubs: Stubs, server: pb.McpServer) -> None:
    """Calls what the server "everything" shows of the protocol: text, an image, progress."""
    tools = await _tools(stubs, server)
    assert "Hi there" in await _answered(stubs, server, "echo", message="Hi there")
    assert "5" in await _answered(stubs, server, "get-sum", a=2, b=3)
    image = rpc.RunMcpServerToolRequest(mcp_server_id=server.id, tool=rpc.McpToolReference(name="get-tiny-image"))
    content = (await stubs.mcp.RunMcpServerTool(image)).content
    assert any(part.image.inline.media_type == "image/png" for part in content)
    assert "trigger-long-running-operation" in tools
    stream = rpc.StreamMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=rpc.McpToolReference(name="trigger-long-running-operation"),
        arguments=json.dumps({"duration": 1, "steps": 3}),
        timeout=Duration(seconds=int(scaled(60))),
    )
    responses = [response async for response in stubs.mcp.StreamMcpServerTool(stream)]
    progress = [item.progress.progress for item in responses if item.HasField("progress")]
    assert progress == sorted(progress)
    assert progress[-1] == responses[-2].progress.total == 3
    assert responses[-1].result.status == SUCCESS


async def test_everything_over_stdio(stubs: Stubs) -> None:
    server = await _program(stubs, "everything", "npx", "-y", EVERYTHING)
    await _require_everything(stubs, server)


@pytest.mark.sweep
async def test_the_memory_server_keeps_its_graph(stubs: Stubs) -> None:
    env = {"MEMORY_FILE_PATH": f"{OUTPUT_DIRECTORY}/memory.jsonl", "OWNER": "{{ AGENT_ID | unknown }}"}
    settings = {"env": env, "persistent_directory": True}
    server = await _program(stubs, "memory", "npx", "-y", "@modelcontextprotocol/server-memory", **settings)
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
    await _answered(stubs, server, "create_entities", entities=[entity])
    theirs = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=rpc.McpToolReference(name="read_graph"),
        caller=rpc.McpCaller(agent_id="agent-1"),
    )
    (empty,) = (await stubs.mcp.RunMcpServerTool(theirs)).content
    assert "likes tea" not in empty.text.text
    rename = rpc.UpdateMcpServerRequest(mcp_server=pb.McpServer(id=server.id, name="graph"))
    rename.update_mask.paths.append("name")
    await stubs.mcp.UpdateMcpServer(rename)  # ends its process
    assert "likes tea" in await _answered(stubs, server, "read_graph")


@pytest.mark.sweep
async def test_the_filesystem_server_stays_in_its_directory(stubs: Stubs) -> None:
    package = "@modelcontextprotocol/server-filesystem"
    server = await _program(stubs, "files", "npx", "-y", package, WORK_DIRECTORY)
    await _answered(stubs, server, "write_file", path=f"{WORK_DIRECTORY}/a.txt", content="one\ntwo\n")
    assert "two" in await _answered(stubs, server, "read_text_file", path=f"{WORK_DIRECTORY}/a.txt")
    refused = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=rpc.McpToolReference(name="read_text_file"),
        arguments=json.dumps({"path": "/etc/passwd"}),
    )
    assert (await stubs.mcp.RunMcpServerTool(refused)).status == message_pb2.TOOL_RETURN_STATUS_ERROR


async def test_the_time_server_answers(stubs: Stubs) -> None:
    server = await _program(stubs, "time", "uvx", "mcp-server-time")
    assert "Europe/Paris" in await _answered(stubs, server, "get_current_time", timezone="Europe/Paris")


@pytest.mark.sweep
async def test_the_git_server_lists_its_tools(stubs: Stubs) -> None:
    server = await _program(stubs, "git", "uvx", "mcp-server-git")
    assert {"git_status", "git_log", "git_diff"} <= await _tools(stubs, server)


async def test_the_fetch_server_reaches_nothing_without_a_grant(stubs: Stubs) -> None:
    server = await _program(stubs, "fetch", "uvx", "mcp-server-fetch", "--ignore-robots-txt")
    assert await _tools(stubs, server) == {"fetch"}
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id,
        tool=rpc.McpToolReference(name="fetch"),
        arguments=json.dumps({"url": "http://192.0.2.1/"}),
        timeout=Duration(seconds=int(scaled(60))),
    )
    assert (await stubs.mcp.RunMcpServerTool(request)).status == message_pb2.TOOL_RETURN_STATUS_ERROR


@pytest.mark.parametrize("transport", ["streamable_http", "sse"])
async def test_everything_over_http(stubs: Stubs, tmp_path: Path, transport: str) -> None:
    await _program(stubs, "installer", "npx", "-y", EVERYTHING)  # installs the package
    (entry,) = tmp_path.glob(f"packages/*/site/node_modules/{EVERYTHING}/dist/index.js")
    with _http_server(entry, "streamableHttp" if transport == "streamable_http" else "sse") as port:
        path = "mcp" if transport == "streamable_http" else "sse"
        settings = pb.McpServer()
        getattr(settings, transport).url = f"http://127.0.0.1:{port}/{path}"
        await _listening(port)
        server = await _created(stubs, "remote", **{transport: getattr(settings, transport)})
        await _require_everything(stubs, server)


@contextmanager
def _http_server(entry: Path, mode: str) -> Iterator[int]:
    """Runs the server "everything" on a free port of this host."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"PORT": str(port), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        ["node", str(entry), mode], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait()


async def _listening(port: int) -> None:
    async with asyncio.timeout(scaled(60)):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            await writer.wait_closed()
            return
