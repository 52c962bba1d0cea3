"""The HTTP client under the SDK: allowed addresses only, no redirects to other hosts, answers of bounded size.

It also notes which requests a server has refused or never received: their tools were not run.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Final, cast

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from httpx_aiohttp.httpx2 import AiohttpTransport, Httpx2AiohttpClient

from mnemesh_tools.mcp_clients.contracts import MAX_ANSWER_BYTES, Allowed

_UNCERTAIN: Final = 408
"""A status below 500 that a proxy may give to a request which the server has begun to carry out."""


class Exchange:
    """What is known of the POST request of one call. `current_exchange` holds it where the SDK sends the request."""

    def __init__(self) -> None:
        """Creates the exchange of a request that is not sent yet."""
        self._is_sent = False
        self._is_accepted = False
        self._never_arrived = False
        self.status: int | None = None
        """The status of a refusal."""
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends when the server refuses the request."""

    @property
    def was_not_run(self) -> bool:
        """Whether the server cannot have begun to carry out the request: it has refused it, or did not receive it."""
        if self._is_accepted:
            return False
        is_refusal = self.status is not None and self.status < 500 and self.status != _UNCERTAIN
        return is_refusal or self._never_arrived or not self._is_sent

    def begin(self) -> None:
        """Notes that the request is being sent."""
        self._is_sent = True

    def answered(self, status: int) -> None:
        """Notes the status of an answer."""
        self._is_accepted = self._is_accepted or status < 300
        if not self._is_accepted:
            self.status = status
            if status >= 400 and not self.refused.done():
                self.refused.set_result(None)

    def failed(self, error: Exception, request: httpx2.Request) -> None:
        """Notes the error of a request without an answer."""
        self._never_arrived = _never_arrived(error, request)


current_exchange: ContextVar[Exchange | None] = ContextVar("current_exchange", default=None)


def _never_arrived(error: Exception, request: httpx2.Request) -> bool:
    if not isinstance(error, httpx2.RequestError):
        return True  # of the authorization, which comes before the request, or after its refusal
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol):
        return True
    if isinstance(error.__cause__, aiohttp.ConnectionTimeoutError):
        return True
    return error.request.url != request.url  # a request of the authorization


class _NotingClient(Httpx2AiohttpClient):
    """A client that notes what becomes of the requests of calls."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        exchange = current_exchange.get()
        if exchange is None or request.method != "POST":
            return await super().send(request, **options)
        exchange.begin()
        try:
            response = await super().send(request, **options)
        except Exception as error:
            exchange.failed(error, request)
            raise
        exchange.answered(response.status_code)
        return response


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
    return _NotingClient(
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
