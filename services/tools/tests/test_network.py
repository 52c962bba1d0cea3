"""The network of tools: none without a grant, and only the proxy with one."""

import ipaddress
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh_sandbox import Access, Level, Outcome, Sandbox, SandboxSettings, SandboxUnavailable, Task
from mnemesh_sandbox.egress.policy import EgressPolicy, Resolver, grant_of
from mnemesh_sandbox.egress.proxy import EgressProxy
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.timeouts import scaled

POLICY = EgressPolicy(private_networks=(ipaddress.ip_network("127.0.0.0/8"),))
SETTINGS = SandboxSettings(minimum=Level.MINIMAL, cpu_seconds=5, memory_mb=256, processes=24, disk_mb=8)
FETCH = """
import urllib.error, urllib.request
try:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return [answer.status, answer.read().decode()]
except urllib.error.HTTPError as error:
    return [error.code, error.read().decode()]
"""


def source_of(body: str, parameters: str = "") -> str:
    return f"def tool({parameters}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer to " + self.path.encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    """The port of an HTTP server on the loopback interface of this host."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest_asyncio.fixture
async def full() -> AsyncIterator[Sandbox]:
    """A sandbox that can confine network access."""
    sandbox = (await probe_sandbox(SETTINGS)).warmed(0)
    if sandbox.isolation.level < Level.FULL:
        pytest.skip(f"this host cannot confine the network of tools: {dict(sandbox.isolation.missing)}")
    yield sandbox
    await sandbox.close()


async def _run(sandbox: Sandbox, body: str, *hosts: str, **arguments: Any) -> tuple[Outcome, EgressProxy]:
    proxy = EgressProxy(grant_of(hosts), POLICY, lambda _: None, Resolver().for_organization("a"))
    source = source_of(body, ", ".join(arguments))
    return await sandbox.run(Task(source, "tool", arguments), scaled(60), Access(serve=proxy.serve)), proxy


async def test_granted_host_answers_through_the_proxy(full: Sandbox, port: int) -> None:
    outcome, proxy = await _run(full, FETCH, f"127.0.0.1:{port}", url=f"http://127.0.0.1:{port}/path?x=1")
    assert outcome.text == "[200, 'answer to /path?x=1']", outcome
    (connection,) = proxy.connections
    assert (connection.port, connection.refusal) == (port, None)
    assert connection.received_bytes > 0


async def test_other_hosts_are_refused_with_the_reason(full: Sandbox, port: int) -> None:
    outcome, _ = await _run(full, FETCH, "api.example", url=f"http://127.0.0.1:{port}/")
    assert "403, '127.0.0.1:" in outcome.text
    assert "is not granted to this tool. Add the host to its network_hosts." in outcome.text


ATTEMPTS = {
    "the loopback interface of the host": "socket.create_connection(('127.0.0.1', port), 2)",
    "an address beyond the proxy": "socket.create_connection(('93.184.216.34', 443), 2)",
    "datagrams": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "raw packets": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a Unix socket": "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
    "IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_STREAM)",
    "SCTP": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)",
    "MPTCP": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
    "SMC": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 256)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "a vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "a listener": "socket.socket().bind(('127.0.0.1', 0))",
    "listening without an address": "socket.socket().listen()",
    "a name": "socket.getaddrinfo('example.com', 80)",
}


async def test_a_grant_opens_nothing_but_the_proxy(full: Sandbox, port: int) -> None:
    body = "import socket\nfound = []\n"
    for name, attempt in ATTEMPTS.items():
        body += f"try:\n    {attempt}\n    found.append({name!r})\nexcept OSError:\n    pass\n"
    outcome, proxy = await _run(full, body + "return found", "example.com", port=port)
    assert outcome.text == "[]", outcome
    assert proxy.connections == []


async def test_a_tool_without_a_grant_has_no_sockets(full: Sandbox) -> None:
    body = "import os, socket\ntry:\n    socket.socket()\nexcept PermissionError:\n    return sorted(os.environ)"
    outcome = await full.run(Task(source_of(body), "tool"), scaled(60))
    assert outcome.text == "['HOME']", outcome


async def test_connections_end_with_the_tool(full: Sandbox, port: int) -> None:
    body = """
    import os, socket, time
    connection = socket.create_connection(("127.0.0.1", 3128))
    connection.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
    assert connection.recv(12) == b"HTTP/1.1 200"
    if os.fork() == 0:
        time.sleep(60)
    return "left a child"
    """
    outcome, proxy = await _run(full, body, f"127.0.0.1:{port}", port=port)
    assert outcome.text == "left a child"
    assert [connection.refusal for connection in proxy.connections] == [None]


async def test_weak_hosts_give_no_access() -> None:
    weak = await Sandbox.open(SETTINGS, layers={"own_uid", "seccomp", "landlock"})
    if weak.isolation.level is Level.NONE:
        pytest.skip(f"this host supports no isolation: {dict(weak.isolation.missing)}")
    with pytest.raises(SandboxUnavailable, match="need the sandbox level full; this host provides"):
        await _run(weak, "return 1", "example.com")


# Over the wire.


def _source(url: str) -> str:
    return f'def fetch() -> list:\n    """Fetches."""\n    url = {url!r}\n' + "\n".join(
        f"    {line}" for line in FETCH.strip().splitlines()
    )


async def test_stored_and_ad_hoc_tools_report_their_connections(embedded: Any, full: Sandbox, port: int) -> None:
    assert full
    hosts = [f"127.0.0.1:{port}", "*.example.com"]
    source = _source(f"http://127.0.0.1:{port}/wire")
    created = await embedded.tools.CreateTool(
        tools_service_pb2.CreateToolRequest(tool=tools_pb2.Tool(source_code=source, network_hosts=hosts))
    )
    assert list(created.tool.network_hosts) == hosts
    for request in (
        pb.ExecuteToolRequest(tool_id=created.tool.id),
        pb.ExecuteToolRequest(ad_hoc=pb.AdHocTool(source_code=source, network_hosts=hosts)),
    ):
        answer = await embedded.executions.ExecuteTool(request)
        assert answer.result == "[200, 'answer to /wire']", answer
        (connection,) = answer.connections
        assert (connection.host, connection.port, connection.address, connection.refusal) == (
            *("127.0.0.1", port),
            *("127.0.0.1", ""),
        )
        assert connection.sent_bytes > 0
        assert connection.received_bytes > 0


async def test_update_takes_the_access_away(embedded: Any, full: Sandbox, port: int) -> None:
    assert full
    source = _source(f"http://127.0.0.1:{port}/")
    tool = tools_pb2.Tool(source_code=source, network_hosts=[f"127.0.0.1:{port}"])
    created = (await embedded.tools.CreateTool(tools_service_pb2.CreateToolRequest(tool=tool))).tool
    request = tools_service_pb2.UpdateToolRequest(tool=tools_pb2.Tool(id=created.id))
    request.update_mask.paths.append("network_hosts")
    assert not (await embedded.tools.UpdateTool(request)).tool.network_hosts
    answer = await embedded.executions.ExecuteTool(pb.ExecuteToolRequest(tool_id=created.id))
    assert answer.status == pb.EXECUTION_STATUS_ERROR
    assert "PermissionError" in answer.stderr or "Operation not permitted" in answer.result


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"network_hosts": ["http://example.com"]}, "tool.network_hosts", "INVALID_ARGUMENT"),
        ({"network_hosts": ["*.com"]}, "tool.network_hosts", "INVALID_ARGUMENT"),
        ({"network_hosts": ["example.com"] * 101}, "tool.network_hosts", "INVALID_ARGUMENT"),
        ({"allow_network": True}, "tool.allow_network", "SANDBOX_UNAVAILABLE"),
    ],
)
async def test_refused_grants_name_the_field(embedded: Any, fields: dict[str, Any], field: str, reason: str) -> None:
    tool = tools_pb2.Tool(source_code=_source("http://example.com/"), **fields)
    error = await catch_refusal(embedded.tools.CreateTool(tools_service_pb2.CreateToolRequest(tool=tool)))
    assert (error.reason, error.metadata["field"]) == (reason, field)
