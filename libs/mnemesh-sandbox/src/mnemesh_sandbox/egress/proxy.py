"""The HTTP proxy of one execution: CONNECT for TLS and other streams, and plain HTTP requests.

The tool's network has only this proxy. The proxy resolves each name itself, checks every address of it, and connects to
a checked address, so a second lookup cannot lead elsewhere.
"""

import asyncio
import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import h11
from mnemesh_kit.network import reason_of_failure

from mnemesh_sandbox.egress.policy import (
    MAX_RECORDED,
    EgressPolicy,
    EgressRefused,
    HostInvalid,
    NetworkConnection,
    NetworkGrant,
    Refusal,
    Resolve,
    normalized_host,
    split_port,
)

HEAD_BYTES: Final = 65_536
_CHUNK: Final = 65_536
_HTTP_PORT: Final = 80
# These headers are for the proxy, or for one connection.
_NOT_FORWARDED: Final = frozenset({b"connection", b"keep-alive", b"host", b"te", b"upgrade"})
_PROXY_PREFIX: Final = b"proxy-"


@dataclass(slots=True)
class ProxyRequest:
    """A request whose head has been read."""

    host: str
    """In its normalized form."""
    port: int
    is_tunnel: bool
    """CONNECT: the bytes that follow are not HTTP of this proxy."""
    target: str
    """The path and the query of a plain request."""
    authority: str
    """The host and the port as the request has them."""
    head: h11.Request
    connection: h11.Connection
    """The state of the client's side, with the bytes that were read after the head."""

    def trailing_bytes(self) -> bytes:
        """Returns the bytes that were read after the head of a tunnel."""
        return self.connection.trailing_data[0]


async def read_head(reader: asyncio.StreamReader) -> ProxyRequest:
    """Reads the head of a request.

    Raises:
        EgressRefused: It is not a request that a proxy can carry out.
        ConnectionError: The client closed the connection.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise _invalid(f"The request is not valid HTTP: {error}") from error
        if isinstance(event, h11.Request):
            return _proxy_request(event, connection)
        if event is not h11.NEED_DATA:
            raise ConnectionResetError("The client closed the connection before it sent a request.")
        connection.receive_data(await reader.read(_CHUNK))


async def forward_request(request: ProxyRequest, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yields a plain request in the form in which its server receives it, with its body. It closes the connection.

    Raises:
        h11.RemoteProtocolError: The body is not valid.
    """
    upstream, client = h11.Connection(h11.CLIENT), request.connection
    headers = [(b"Host", request.authority.encode()), *_forwarded(request.head), (b"Connection", b"close")]
    yield upstream.send(h11.Request(method=request.head.method, target=request.target, headers=headers)) or b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(_CHUNK))
        elif isinstance(event, h11.Data):
            yield upstream.send(h11.Data(data=bytes(event.data))) or b""
        elif isinstance(event, h11.EndOfMessage):
            yield upstream.send(h11.EndOfMessage()) or b""
            return
        else:
            raise h11.RemoteProtocolError("the client closed the connection within the request")


def answer_bytes() -> bytes:
    """Returns the answer to a CONNECT that succeeded."""
    return b"HTTP/1.1 200 Connection established\r\n\r\n"


def refusal_bytes(status: int, text: str) -> bytes:
    """Returns the answer to a request that is refused, with the reason as its body."""
    body = text.encode()
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def _proxy_request(head: h11.Request, connection: h11.Connection) -> ProxyRequest:
    target = head.target.decode("ascii", "replace")
    is_tunnel = head.method == b"CONNECT"
    try:
        if is_tunnel:
            authority, path = target, ""
        else:
            parts = urlsplit(target)
            if parts.scheme.lower() != "http" or not parts.netloc or parts.username is not None:
                raise _invalid("The proxy accepts CONNECT, and requests with a URL of the scheme http.")
            authority = parts.netloc
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        name, port = split_port(authority)
        if is_tunnel and port is None:
            raise _invalid("CONNECT needs a host and a port.")
        host = normalized_host(name)
    except (HostInvalid, ValueError) as error:
        raise _invalid(f"The address of the request is not valid: {error}.") from error
    return ProxyRequest(host, port or _HTTP_PORT, is_tunnel, path, authority, head, connection)


def _forwarded(head: h11.Request) -> list[tuple[bytes, bytes]]:
    named = {
        token.strip().lower()
        for name, value in head.headers
        if name == b"connection"
        for token in bytes(value).split(b",")
    }
    if any(name == b"transfer-encoding" for name, _ in head.headers):
        named.add(b"content-length")  # servers differ in which of the two they obey
        named.discard(b"transfer-encoding")
    else:
        named.discard(b"content-length")
    return [
        (bytes(name), bytes(value))
        for name, value in head.headers
        if name not in _NOT_FORWARDED and name not in named and not name.startswith(_PROXY_PREFIX)
    ]


def _invalid(text: str) -> EgressRefused:
    return EgressRefused(400, Refusal.INVALID, text)


_HEAD_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 30.0
_ACCEPT_AGAIN_SECONDS: Final = 1.0


class EgressProxy:
    """Carries the connections of one execution."""

    def __init__(
        self,
        grant: NetworkGrant,
        policy: EgressPolicy,
        ended: Callable[[NetworkConnection], None],
        resolve: Resolve,
    ) -> None:
        """Stores the rules.

        Args:
            grant: The hosts that the tool may connect to.
            policy: The rules of the operator.
            ended: Is called with each connection that has ended or was refused.
            resolve: Resolves names.
        """
        self.connections: list[NetworkConnection] = []
        """The first connections, in the order in which they ended."""
        self._grant = grant
        self._policy = policy
        self._ended = ended
        self._resolve = resolve
        self._open = 0
        self._bytes = 0

    async def serve(self, listener: socket.socket) -> None:
        """Accepts connections until it is cancelled; then it closes all of them.

        The kernel refuses those after `max_attempts`. Those that wait for one of the first `2 * max_connections` to end
        are not accepted yet, so that they use nothing of this process.
        """
        tasks: set[asyncio.Task[None]] = set()
        free = asyncio.Semaphore(2 * self._policy.max_connections)
        listener.setblocking(False)
        try:
            for _ in range(self._policy.max_attempts):
                await free.acquire()
                accepted = await _accept(listener)
                task = asyncio.create_task(self._handle(accepted))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(partial(_release, accepted, free))
            listener.close()
            await asyncio.Event().wait()
        finally:
            listener.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle(self, accepted: socket.socket) -> None:
        connection, started = NetworkConnection("", 0), time.monotonic()
        self._open += 1
        try:
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection(sock=accepted, limit=HEAD_BYTES)
                async with _closing(writer):
                    await self._carry(reader, writer, connection)
        finally:
            self._open -= 1
            if connection.host or connection.refusal is not None:
                connection.seconds = time.monotonic() - started
                if len(self.connections) < MAX_RECORDED:
                    self.connections.append(connection)
                self._ended(connection)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: NetworkConnection
    ) -> None:
        answered = False
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                request = await read_head(reader)
            connection.host, connection.port = request.host, request.port
            upstream_reader, upstream_writer = await self._connect(connection)
            async with _closing(upstream_writer):
                if request.is_tunnel:
                    writer.write(answer_bytes())
                answered = True
                await self._relay(request, (reader, writer), (upstream_reader, upstream_writer), connection)
        except EgressRefused as refused:
            connection.refusal = refused.refusal
            if not answered:
                writer.write(refusal_bytes(refused.status, str(refused)))
                await writer.drain()

    async def _connect(self, connection: NetworkConnection) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = connection.host, connection.port
        if not self._grant.allows(host, port):
            text = f"{host}:{port} is not granted to this tool. Add the host to its network_hosts."
            raise EgressRefused(403, Refusal.NOT_GRANTED, text)
        if self._open > self._policy.max_connections:
            text = f"The tool has more than {self._policy.max_connections} connections at the same time."
            raise EgressRefused(503, Refusal.TOO_MANY, text)
        problem: OSError | TimeoutError | None = None
        for address in await self._addresses(host, port):
            try:
                async with asyncio.timeout(self._policy.connect_seconds):
                    reader, writer = await asyncio.open_connection(address, port, limit=HEAD_BYTES)
            except (OSError, TimeoutError) as error:
                problem = error
                continue
            if writer.get_extra_info("peername") is None:  # the peer has closed it already
                writer.transport.abort()
                continue
            if not self._leads_elsewhere(writer):
                writer.transport.abort()
                raise self._address_refused(host)
            connection.address = address
            return reader, writer
        reason = "it has no address" if problem is None else reason_of_failure(problem)
        raise EgressRefused(502, Refusal.UNREACHABLE, f"{host}:{port} cannot be reached: {reason}") from problem

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            async with asyncio.timeout(self._policy.connect_seconds):
                found = await self._resolve(host, port)
        except (OSError, TimeoutError) as error:
            raise EgressRefused(502, Refusal.UNRESOLVED, f"The name {host} cannot be resolved.") from error
        if not all(self._policy.allows_address(ipaddress.ip_address(address)) for address in found):
            raise self._address_refused(host)
        return found

    def _leads_elsewhere(self, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the peer is another host, or this one at an address that the operator allows.

        A public address can be one of this host itself, where the services listen.
        """
        own, peer = (writer.get_extra_info(name)[0].partition("%")[0] for name in ("sockname", "peername"))
        address = ipaddress.ip_address(peer)
        return own != peer or any(
            address.version == network.version and address in network for network in self._policy.private_networks
        )

    def _address_refused(self, host: str) -> EgressRefused:
        setting = self._policy.networks_setting
        text = f"{host} has an address that is not public. The operator can allow it ({setting})."
        return EgressRefused(403, Refusal.ADDRESS, text)

    async def _relay(
        self,
        request: ProxyRequest,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        connection: NetworkConnection,
    ) -> None:
        """Copies both directions until the answer has ended."""

        def sent(count: int) -> None:
            connection.sent_bytes += count
            self._spend(count)

        def received(count: int) -> None:
            connection.received_bytes += count
            self._spend(count)

        there = self._copy_up(request, client[0], upstream[1], sent)
        back = _copy(upstream[0], client[1], received)
        sending, receiving = asyncio.create_task(there), asyncio.create_task(back)
        try:
            waiting = {sending, receiving}
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if receiving in done and not request.is_tunnel:
                    break  # a server can answer before it has read the request
        finally:
            for task in (sending, receiving):
                task.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    async def _copy_up(
        self,
        request: ProxyRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        count: Callable[[int], None],
    ) -> None:
        if request.is_tunnel:
            first = request.trailing_bytes()
            if first:
                count(len(first))
                writer.write(first)
            await _copy(reader, writer, count)
            return
        try:
            async for data in forward_request(request, reader):
                count(len(data))
                writer.write(data)
                await writer.drain()
        except h11.ProtocolError as error:
            raise EgressRefused(400, Refusal.INVALID, f"The request is not valid HTTP: {error}") from error

    def _spend(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._policy.max_bytes:
            text = f"The tool transferred more than {self._policy.max_bytes >> 20} MB."
            raise EgressRefused(503, Refusal.TOO_MUCH, text)


async def _accept(listener: socket.socket) -> socket.socket:
    """Returns the next connection; also if this process has no descriptor for it at the moment.

    `loop.sock_accept` loses a connection, and leaves it open, if its caller is cancelled just after it arrived.
    """
    while True:
        try:
            accepted, _ = listener.accept()
        except BlockingIOError:
            await _readable(listener)
        except OSError:
            await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
        else:
            accepted.setblocking(False)
            return accepted


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(listener, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(listener)


def _release(accepted: socket.socket, free: asyncio.Semaphore, _: object) -> None:
    accepted.close()  # the task may have been cancelled before it began
    free.release()


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Closes a connection after the block, also if its peer does not read what is left: then after a while."""
    try:
        yield
        writer.close()
        async with asyncio.timeout(_CLOSE_SECONDS):
            await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
    while data := await reader.read(_CHUNK):
        count(len(data))
        writer.write(data)
        await writer.drain()
    with suppress(OSError):  # the other side has closed already
        writer.write_eof()
