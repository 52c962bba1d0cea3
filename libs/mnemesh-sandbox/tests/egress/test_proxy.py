"""The proxy of an execution, over real connections."""

import asyncio
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mnemesh_sandbox.egress.policy import EgressPolicy, NetworkConnection, Refusal, grant_of
from mnemesh_sandbox.egress.proxy import EgressProxy
from mnemesh_testkit.timeouts import scaled

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Upstream:
    """A server that records what it receives, and answers."""

    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    until: bytes = b"\r\n\r\n"
    received: list[bytes] = field(default_factory=list)
    port: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received.append(await reader.readuntil(self.until))
            writer.write(self.answer)
            await writer.drain()
        except asyncio.IncompleteReadError:  # the proxy gave the request up
            pass
        finally:
            writer.close()


async def received(reader: asyncio.StreamReader) -> bytes:
    """Returns what arrives until the connection ends. A server that has not read all of a request may reset it."""
    data = b""
    async with asyncio.timeout(scaled(60)):
        with suppress(ConnectionResetError):
            while part := await reader.read(65_536):
                data += part
    return data


@dataclass
class Client:
    """Talks to a proxy."""

    port: int
    proxy: EgressProxy
    ended: list[NetworkConnection]

    async def exchange(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        answer = await received(reader)
        writer.close()
        return answer

    async def wait_for(self, count: int) -> list[NetworkConnection]:
        async with asyncio.timeout(scaled(60)):
            while len(self.ended) < count:
                await asyncio.sleep(0.01)
        return self.ended


@asynccontextmanager
async def serving(
    *hosts: str, policy: EgressPolicy | None = None, names: dict[str, list[str]] | None = None
) -> AsyncIterator[Client]:
    """A proxy for these hosts, which resolves only these names."""
    known = names or {}

    async def resolve(host: str, _: int) -> list[str]:
        if host not in known:
            raise socket.gaierror(f"{host} is unknown")
        return known[host]

    ended: list[NetworkConnection] = []
    proxy = EgressProxy(grant_of(hosts), policy or EgressPolicy(private_networks=LOOPBACK), ended.append, resolve)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    task = asyncio.create_task(proxy.serve(listener))
    try:
        yield Client(listener.getsockname()[1], proxy, ended)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def listening(upstream: Upstream) -> AsyncIterator[Upstream]:
    server = await asyncio.start_server(upstream.handle, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    async with server:
        yield upstream


def here(upstream: Upstream) -> tuple[str, dict[str, list[str]]]:
    return f"api.example:{upstream.port}", {"api.example": ["127.0.0.1"]}


async def test_plain_request_reaches_its_host_without_the_headers_of_the_proxy() -> None:
    async with listening(Upstream(until=b"\r\n\r\nbody!")) as upstream:
        host, names = here(upstream)
        async with serving(host, names=names) as client:
            answer = await client.exchange(
                f"POST http://{host}/a/b?c=d HTTP/1.1\r\nHost: other.example\r\nX-Own: 1\r\nX-Hop: 2\r\n"
                "Proxy-Authorization: secret\r\nConnection: keep-alive, X-Hop\r\n"
                "Content-Length: 5\r\n\r\nbody!".encode()
            )
            (connection,) = await client.wait_for(1)
        assert answer.endswith(b"\r\n\r\nhi")
        (received,) = upstream.received
        assert received.startswith(b"POST /a/b?c=d HTTP/1.1\r\n")
        lines = {line.split(b":")[0].lower() for line in received.split(b"\r\n")[1:] if b":" in line}
        assert lines == {b"host", b"x-own", b"connection", b"content-length"}
        assert f"host: {host}".encode() in received.lower()
        assert (connection.host, connection.address, connection.refusal) == ("api.example", "127.0.0.1", None)
        assert connection.sent_bytes == len(received)
        assert connection.received_bytes == len(answer)


async def test_chunked_body_is_forwarded() -> None:
    async with listening(Upstream(until=b"0\r\n\r\n")) as upstream:
        host, names = here(upstream)
        async with serving(host, names=names) as client:
            head = f"PUT http://{host}/ HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n"
            answer = await client.exchange(head.encode() + b"3\r\nabc\r\n0\r\n\r\n")
    assert answer.endswith(b"hi")
    assert b"abc" in upstream.received[0]


async def test_tunnel_carries_bytes_in_both_directions() -> None:
    async with listening(Upstream(until=b"ping", answer=b"\x00pong")) as upstream:
        host, names = here(upstream)
        async with serving(host, names=names) as client:
            answer = await client.exchange(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() + b"\x16ping")
            (connection,) = await client.wait_for(1)
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n\x00pong"
    assert upstream.received == [b"\x16ping"]
    assert (connection.sent_bytes, connection.received_bytes) == (5, 5)


async def test_address_of_a_name_is_checked_each_time_and_used_as_checked() -> None:
    """A name whose addresses change between two lookups leads nowhere else, because there is one lookup."""
    async with listening(Upstream()) as upstream:
        host, _ = here(upstream)
        lookups = [["127.0.0.1"], ["10.0.0.1"]]

        async with serving(host) as client:

            async def resolve(*_: object) -> list[str]:
                return lookups.pop(0)

            client.proxy._resolve = resolve
            request = f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            assert (await client.exchange(request)).endswith(b"hi")
            assert (await client.exchange(request)).startswith(b"HTTP/1.1 403")
            assert [connection.refusal for connection in await client.wait_for(2)] == [None, Refusal.ADDRESS]


@pytest.mark.parametrize(
    ("request_line", "status", "refusal"),
    [
        ("CONNECT other.example:443", 403, Refusal.NOT_GRANTED),
        ("GET http://other.example/", 403, Refusal.NOT_GRANTED),
        ("CONNECT api.example:22", 403, Refusal.NOT_GRANTED),
        ("CONNECT private.example:443", 403, Refusal.ADDRESS),
        ("CONNECT mixed.example:443", 403, Refusal.ADDRESS),
        ("CONNECT 10.0.0.1:443", 403, Refusal.ADDRESS),
        ("CONNECT [::ffff:10.0.0.1]:443", 403, Refusal.ADDRESS),
        ("CONNECT unknown.example:443", 502, Refusal.UNRESOLVED),
        ("CONNECT closed.example:443", 502, Refusal.UNREACHABLE),
        ("CONNECT api.example", 400, Refusal.INVALID),
        ("CONNECT 127.1:443", 400, Refusal.INVALID),
        ("CONNECT api.example:0", 400, Refusal.INVALID),
        ("GET /path", 400, Refusal.INVALID),
        ("GET https://api.example/", 400, Refusal.INVALID),
        ("GET ftp://api.example/", 400, Refusal.INVALID),
        ("GET http://user:pw@api.example/", 400, Refusal.INVALID),
        ("GET http://[::1/", 400, Refusal.INVALID),
        ("NOT HTTP AT ALL", 400, Refusal.INVALID),
    ],
)
async def test_refused_requests_name_the_reason(request_line: str, status: int, refusal: Refusal) -> None:
    names = {
        "private.example": ["192.168.0.1"],
        "mixed.example": ["93.184.216.34", "10.0.0.1"],
        "closed.example": ["127.0.0.1"],
        "10.0.0.1": ["10.0.0.1"],
        "::ffff:10.0.0.1": ["::ffff:10.0.0.1"],
        "::ffff:a00:1": ["::ffff:10.0.0.1"],
    }
    granted = ("api.example", *(name for name in names if not name.startswith(":")), "unknown.example")
    async with serving(*granted, "[::ffff:10.0.0.1]", names=names) as client:
        answer = await client.exchange(f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        (connection,) = await client.wait_for(1)
        assert connection.refusal is refusal
        assert connection.address == ""
        assert client.proxy.connections == [connection]


async def test_this_host_is_refused_also_at_a_public_address() -> None:
    """The services listen here. A connection whose ends have the same address stays on this host."""
    async with listening(Upstream()) as upstream:
        host, names = here(upstream)

        class Public(EgressPolicy):
            def allows_address(self, address: object) -> bool:
                return True

        async with serving(host, policy=Public(), names=names) as client:
            answer = await client.exchange(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 403")
    assert upstream.received == []


async def test_transfer_is_cut_at_its_limit() -> None:
    async with listening(Upstream(answer=b"x" * 3_000_000)) as upstream:
        host, names = here(upstream)
        policy = EgressPolicy(private_networks=LOOPBACK, max_bytes=1_000_000)
        async with serving(host, policy=policy, names=names) as client:
            answer = await client.exchange(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            (connection,) = await client.wait_for(1)
            assert len(answer) < 1_000_000
            assert connection.refusal is Refusal.TOO_MUCH
            answer = await client.exchange(f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert b"x" not in answer, "the limit is that of all connections together"


async def test_connections_at_the_same_time_are_bounded() -> None:
    async with listening(Upstream()) as upstream:
        host, names = here(upstream)
        policy = EgressPolicy(private_networks=LOOPBACK, max_connections=1)
        async with serving(host, policy=policy, names=names) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            answer = await client.exchange(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 503")
            writer.close()


async def test_open_connections_end_with_the_proxy() -> None:
    async with listening(Upstream()) as upstream:
        host, names = here(upstream)
        async with serving(host, names=names) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert await reader.readuntil(b"\r\n\r\n")
        assert await received(reader) == b""
        writer.close()
    assert client.ended[0].host == "api.example"


@pytest.mark.parametrize(
    "data", [b"", b"\r\n", b"GET http://api.example/ HTTP/1.1\r\nA: " + b"x" * 70_000, b"\x16\x03\x01"]
)
async def test_garbage_is_answered_or_dropped(data: bytes) -> None:
    async with serving("api.example") as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(data)
        writer.write_eof()
        answer = await received(reader)
        assert not answer or answer.startswith(b"HTTP/1.1 4")
        writer.close()


async def test_connections_without_a_request_are_bounded() -> None:
    """Those of a tool that only connects use descriptors of the service, which all organizations share."""
    policy = EgressPolicy(private_networks=LOOPBACK, max_connections=2)
    async with listening(Upstream()) as upstream:
        host, names = here(upstream)
        async with serving(host, policy=policy, names=names) as client:
            before = _descriptors()
            silent = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(20)]
            request = f"GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            waiting = asyncio.create_task(client.exchange(request))
            reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)  # other work goes on
            writer.write(b"\r\n\r\n")
            assert await reader.read()
            writer.close()
            accepted = len(_descriptors()) - len(before) - len(silent)
            assert accepted <= 2 * policy.max_connections + 4
            assert not waiting.done()
            for one in silent:
                one.close()
            assert (await waiting).startswith(b"HTTP/1.1 200"), "it waited for its turn"


async def test_number_of_connections_is_bounded() -> None:
    policy = EgressPolicy(private_networks=LOOPBACK, max_attempts=2)
    async with serving("api.example", policy=policy) as client:
        request = b"CONNECT a.example:1 HTTP/1.1\r\nHost: a\r\n\r\n"
        for _ in range(2):
            assert (await client.exchange(request)).startswith(b"HTTP/1.1 403")
        with pytest.raises(ConnectionRefusedError):
            await client.exchange(request)
    assert len(client.ended) == 2


async def test_no_connection_is_left_to_a_server_that_does_not_read() -> None:
    """Its descriptor would be lost to the service for ever."""
    stop, peers = asyncio.Event(), []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport: asyncio.Transport = writer.transport
        transport.pause_reading()
        peers.append(writer)
        await stop.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0, limit=1)
    port = server.sockets[0].getsockname()[1]
    before = set(_connected_to(port))
    async with serving(f"api.example:{port}", names={"api.example": ["127.0.0.1"]}) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"CONNECT api.example:{port} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):  # until all buffers are full
                while True:
                    writer.write(b"x" * 1_000_000)
                    await writer.drain()
        assert set(_connected_to(port)) - before
    assert set(_connected_to(port)) == before
    writer.transport.abort()
    stop.set()
    server.close()


def _descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def _connected_to(port: int) -> list[int]:
    """Returns the descriptors of this process that are connected to a port of this host."""
    found = []
    for number in _descriptors():
        try:
            with socket.socket(fileno=os.dup(number)) as one:
                if one.getpeername()[1] == port:
                    found.append(number)
        except (OSError, IndexError, TypeError):
            continue
    return found


async def test_a_request_has_one_length_for_its_server() -> None:
    async with listening(Upstream(until=b"0\r\n\r\n")) as upstream:
        host, names = here(upstream)
        async with serving(host, names=names) as client:
            head = f"POST http://{host}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"
            hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: other.example\r\n\r\n"
            await client.exchange(f"{head}Connection: transfer-encoding\r\n\r\n{hidden}".encode())
    (received,) = upstream.received
    assert b"content-length" not in received.lower()
    assert b"transfer-encoding: chunked" in received.lower()
    assert b"hidden" not in received


async def test_port_beyond_all_ports_is_no_port() -> None:
    async with serving("api.example") as client:
        answer = await client.exchange(b"CONNECT api.example:0000011234567 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_arrives_when_the_execution_ends_is_closed(turns: int) -> None:
    """`turns` are those of the event loop between the connection and the end: one of them is just after the accept."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    proxy = EgressProxy(grant_of(["example.test"]), EgressPolicy(), lambda _: None, _no_name)
    serving_task = asyncio.create_task(proxy.serve(listener))
    await asyncio.sleep(0)
    with socket.create_connection(listener.getsockname()) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        serving_task.cancel()
        await asyncio.gather(serving_task, return_exceptions=True)
        client.settimeout(scaled(60))
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


async def _no_name(host: str, port: int) -> list[str]:
    raise OSError(f"{host}:{port} is not known")
