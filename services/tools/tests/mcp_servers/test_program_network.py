"""The network of stdio servers: the granted hosts, and nothing else."""

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_sandbox import Level
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits

from ..conftest import Stubs, serve
from .program import SOURCE


class Site(ThreadingHTTPServer):
    """A web site on the loopback interface, and the paths that were read."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        super().__init__(("127.0.0.1", 0), _Page)

    @property
    def host(self) -> str:
        """The address as a grant names it."""
        return f"127.0.0.1:{self.server_port}"


class _Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"page " + self.path.encode())

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def _site() -> Iterator[Site]:
    site = Site()
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield site
    site.shutdown()
    site.server_close()


@pytest.fixture
def granted() -> Iterator[Site]:
    """A site that the program may reach."""
    with _site() as site:
        yield site


@pytest.fixture
def other() -> Iterator[Site]:
    """A site at another port, which the program may not reach."""
    with _site() as site:
        yield site


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A running service whose programs may be granted this host."""
    config = Config(
        port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0, private_networks="127.0.0.0/8"
    )
    if (await probe_sandbox(config.sandbox)).isolation.level < Level.FULL:
        pytest.skip("this host cannot confine the network of a program")
    async with serve(config, McpLimits(connect_seconds=scaled(60))) as found:
        yield found


async def _created(stubs: Stubs, *hosts: str) -> pb.McpServer:
    transport = pb.StdioTransport(command="python3", args=["-c", SOURCE], network_hosts=hosts)
    request = rpc.CreateMcpServerRequest(mcp_server=pb.McpServer(name="program", stdio=transport))
    server = (await stubs.mcp.CreateMcpServer(request)).mcp_server
    assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
    return server


async def _reached(stubs: Stubs, server: pb.McpServer, url: str) -> str:
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id, tool=rpc.McpToolReference(name="reach"), arguments=json.dumps({"url": url})
    )
    text: str = (await stubs.mcp.RunMcpServerTool(request)).content[0].text.text
    return text


async def test_a_program_reaches_the_granted_host_and_no_other(stubs: Stubs, granted: Site, other: Site) -> None:
    server = await _created(stubs, granted.host)
    for path in ("/one", "/two"):
        assert await _reached(stubs, server, f"http://{granted.host}{path}") == f"page {path}"
    for url in (f"http://{other.host}/", "http://192.0.2.1/", "http://localhost:1/"):
        assert (await _reached(stubs, server, url)).endswith("Error"), url
    assert (granted.paths, other.paths) == (["/one", "/two"], [])


async def test_a_host_that_is_not_granted_any_more_is_out_of_reach(stubs: Stubs, granted: Site) -> None:
    server = await _created(stubs, granted.host)
    assert await _reached(stubs, server, f"http://{granted.host}/before") == "page /before"
    without = pb.McpServer(id=server.id, stdio=pb.StdioTransport())
    mask = FieldMask(paths=["stdio.network_hosts"])
    await stubs.mcp.UpdateMcpServer(rpc.UpdateMcpServerRequest(mcp_server=without, update_mask=mask))
    assert (await _reached(stubs, server, f"http://{granted.host}/after")).endswith("Error")
    assert granted.paths == ["/before"]
