"""The HTTP client under the SDK: allowed addresses only, no redirects to other hosts, answers of bounded size."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from httpx_aiohttp.httpx2 import AiohttpTransport, Httpx2AiohttpClient

from mnemesh_tools.mcp_clients.contracts import MAX_ANSWER_BYTES, Allowed


def open_http_client(
    headers: tuple[tuple[str, str], ...],
    allowed: Allowed | None,
    connect_seconds: float,
    on_status: Callable[[int], None],
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """Returns a client with these headers.

    Args:
        headers: The headers of each request.
        allowed: Decides which addresses may be reached; None permits all of them, and the proxies of the environment.
        connect_seconds: The longest time of a connection's start. The callers bound all other times.
        on_status: Receives the HTTP status of each answer, other than those of servers without event streams.
        auth: Authorizes requests.
    """

    async def note_status(response: httpx2.Response) -> None:
        if response.status_code != 405:
            on_status(response.status_code)

    transport = None if allowed is None else _GuardedTransport(allowed)
    return Httpx2AiohttpClient(
        headers=[*headers, ("Accept-Encoding", "identity")],
        timeout=httpx2.Timeout(None, connect=connect_seconds),
        follow_redirects=False,  # the SDK follows those within the same origin
        event_hooks={"response": [_bound_answer, note_status]},
        transport=transport,
        auth=auth,
    )


async def _bound_answer(response: httpx2.Response) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise httpx2.DecodingError("The server compresses its answer, although the request refuses that.")
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = _BoundedStream(cast("httpx2.AsyncByteStream", response.stream))


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of at most MAX_ANSWER_BYTES. The SDK bounds each event of an event stream."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for piece in self._stream:
            received += len(piece)
            if received > MAX_ANSWER_BYTES:
                raise httpx2.ReadError(f"The server answered with more than {MAX_ANSWER_BYTES >> 20} MB.")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _GuardedTransport(AiohttpTransport):
    """A transport that refuses an address in the URL itself, which is not resolved."""

    def __init__(self, allowed: Allowed) -> None:
        super().__init__(client=lambda: _session(allowed))
        self._allowed = allowed

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            address = ipaddress.ip_address(request.url.host)
        except ValueError:
            pass  # a name: the resolver checks its addresses
        else:
            if not self._allowed(address):
                raise httpx2.ConnectError(_refusal(request.url.host))
        return await super().handle_async_request(request)


class _GuardedResolver(AbstractResolver):
    """Resolves names to allowed addresses. The connection uses exactly these, so a second lookup cannot differ."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        if not all(self._allowed(ipaddress.ip_address(result["host"].partition("%")[0])) for result in results):
            raise PermissionError(errno.EACCES, _refusal(host))
        return results

    async def close(self) -> None:
        await self._resolver.close()


def _session(allowed: Allowed) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        resolver=_GuardedResolver(allowed), ssl=httpx2.create_ssl_context(), use_dns_cache=True
    )
    return aiohttp.ClientSession(connector=connector)


def _refusal(host: str) -> str:
    return f"{host} has an address that is not public. An operator can allow it with MNEMESH_TOOLS_PRIVATE_NETWORKS"
