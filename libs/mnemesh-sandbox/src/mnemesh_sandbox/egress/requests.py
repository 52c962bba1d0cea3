"""The requests that a proxy receives: their heads, and the form in which they are forwarded."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import h11

from mnemesh_sandbox.egress.grants import HostInvalid, normalized_host, split_port
from mnemesh_sandbox.egress.policy import EgressRefused, Refusal

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
