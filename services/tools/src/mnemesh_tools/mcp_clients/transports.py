"""The transports of MCP: streamable HTTP, SSE, and the standard input and output of a program."""

import asyncio
import errno
import ipaddress
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

import aiohttp
import anyio
import httpx2
from aiohttp.abc import AbstractResolver, ResolveResult
from httpx_aiohttp.httpx2 import AiohttpTransport, Httpx2AiohttpClient
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from mnemesh_sandbox.process import Talk
from mnemesh_sandbox.redaction import Redactor

from mnemesh_tools.mcp_clients.contracts import (
    MAX_ANSWER_BYTES,
    MAX_EVENT_BYTES,
    Allowed,
    McpContactFailed,
    McpLimits,
    McpTarget,
)
from mnemesh_tools.mcp_clients.results import acceptable
from mnemesh_tools.model.mcp_servers import TransportType

_AGAIN_SECONDS: Final = 6.0
"""Longer than the SDK takes to tell a server that a call is cancelled."""


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end; again and again, because a library may lose a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()  # nobody else waits for it


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


RunProgram = Callable[[Talk], Coroutine[Any, Any, str]]
"""Runs the program until the talk with it ends, and returns why it ended."""
_CHUNK: Final = 65_536
_STDERR_BYTES: Final = 8_192
_MAX_FOREIGN_LINES: Final = 1_000
_LAST_WORDS_SECONDS: Final = 0.5
"""The time between the end of the standard input or output of a program, and its own end."""
_BURST: Final = 100
_BURST_SECONDS: Final = 0.05
"""A program that writes more messages waits: others need the processor, too."""


class ProgramEnded(Exception):
    """The program ended by itself. The message says why, with the end of its standard error."""


class ProgramOutput:
    """The end of what a program wrote beside its messages, without secrets."""

    def __init__(self, redactor: Redactor) -> None:
        """Creates an empty output, whose text has none of the values that the redactor knows."""
        self._redactor = redactor
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_cut = False

    def add(self, piece: bytes) -> None:
        """Keeps a piece, and forgets the oldest ones."""
        self._pieces.append(piece[-_STDERR_BYTES:])
        self._size += len(self._pieces[-1])
        self._is_cut = self._is_cut or self._size > _STDERR_BYTES or len(piece) > _STDERR_BYTES
        while self._size - len(self._pieces[0]) >= _STDERR_BYTES:
            self._size -= len(self._pieces.popleft())

    @property
    def text(self) -> str:
        """The text, without control characters."""
        text = b"".join(self._pieces)[-_STDERR_BYTES:].decode("utf-8", "replace")
        text = self._redactor.redacted(text, is_cut=True, begins_late=self._is_cut)
        return "".join(character for character in text if character in "\n\t" or character.isprintable()).strip()


@asynccontextmanager
async def program_streams(run: RunProgram, output: ProgramOutput) -> AsyncIterator[Any]:
    """Yields the streams of messages of a program, and ends it afterwards.

    Raises:
        McpContactFailed: The program cannot be started.
        ProgramEnded: It ended by itself, or wrote what is not a message.
    """
    ended_first = False
    to_session, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    failures: list[str] = []

    async def talk(stdout: asyncio.StreamReader, stdin: asyncio.StreamWriter, stderr: asyncio.StreamReader) -> None:
        reading = asyncio.create_task(_read(stdout, to_session, output, failures))
        noise = asyncio.create_task(_keep(stderr, output))
        writing = asyncio.create_task(_write(from_session, stdin))
        nonlocal ended_first
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            ended_first = not writing.done()
            stdin.close()  # the sign for the program to end
            _, open_streams = await asyncio.wait({reading, noise}, timeout=_LAST_WORDS_SECONDS)
            if ended_first and open_streams and not failures:
                failures.append("The program closed its standard output.")
        finally:
            for task in (reading, noise, writing):
                task.cancel()
            await asyncio.gather(reading, noise, writing, return_exceptions=True)

    running = asyncio.create_task(run(talk))
    running.add_done_callback(lambda _: to_session.close())
    try:
        yield messages, outgoing
    finally:
        messages.close()
        outgoing.close()
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            await end_task(running)
            raise
        finally:
            to_session.close()
            from_session.close()
        error = running.exception()
        if error is not None:
            raise error
        if ended_first:
            raise ProgramEnded(_ended(failures[0] if failures else f"The program ended: {running.result()}.", output))


async def _read(
    stdout: asyncio.StreamReader,
    to_session: Any,
    output: ProgramOutput,
    failures: list[str],
) -> None:
    """Passes the messages of a program on. Lines that are no messages are kept as those of its standard error."""
    buffer, foreign, count, since = bytearray(), 0, 0, time.monotonic()
    async with to_session:
        while chunk := await stdout.read(_CHUNK):
            buffer += chunk
            *lines, rest = buffer.split(b"\n")
            buffer = bytearray(rest)
            if len(buffer) > MAX_EVENT_BYTES or any(len(line) > MAX_EVENT_BYTES for line in lines):
                failures.append(f"The program wrote a message of more than {MAX_EVENT_BYTES >> 20} MB.")
                return
            for line in lines:
                if not line.strip():
                    continue
                try:
                    message = jsonrpc_message_adapter.validate_json(bytes(line), by_name=False)
                except ValueError:
                    output.add(bytes(line[:_CHUNK]) + b"\n")
                    foreign += 1
                    if foreign > _MAX_FOREIGN_LINES:
                        failures.append(
                            f"The program wrote more than {_MAX_FOREIGN_LINES:,} lines that are no messages to its "
                            "standard output."
                        )
                        return
                    continue
                try:
                    await to_session.send(SessionMessage(message))
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    return  # the session is closed
                count += 1
                if count % _BURST == 0:
                    await asyncio.sleep(max(0.0, since + _BURST_SECONDS - time.monotonic()))
                    since = time.monotonic()


async def _write(from_session: Any, stdin: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the program closed its standard input: its end says why
        async for item in from_session:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(text.encode() + b"\n")
            await stdin.drain()


async def _keep(stderr: asyncio.StreamReader, output: ProgramOutput) -> None:
    while chunk := await stderr.read(_CHUNK):
        output.add(chunk)
        await asyncio.sleep(0)


def _ended(reason: str, output: ProgramOutput) -> str:
    words = " ".join(output.text.split())
    return f"{reason} Its last output: …{words[-300:]}" if words else reason


def with_output(error: McpContactFailed, output: ProgramOutput) -> McpContactFailed:
    """Returns the error with the end of the program's output."""
    return McpContactFailed(_ended(str(error), output))


class OpenTransport:
    """An open transport in the form that `Client` accepts. The session closes it."""

    def __init__(self, streams: Any, on_end: Callable[[], None]) -> None:
        reader, writer = streams
        self._streams = _WatchedStream(reader, on_end), writer

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


class _WatchedStream:
    """The stream of the server's messages, whose end is noticed also when no call waits for an answer."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_WatchedStream":
        return self

    async def __anext__(self) -> Any:
        try:
            return acceptable(await self._stream.__anext__())
        except StopAsyncIteration:
            self._on_end()
            raise

    async def __aenter__(self) -> "_WatchedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._stream.__aexit__(*details)


class Programs(Protocol):
    """Starts the programs of servers, within limits. The use cases implement it, with sandboxes and packages."""

    def run(self, target: McpTarget, talk: Talk, output: Callable[[], str]) -> Coroutine[Any, Any, str]:
        """Runs a program until the talk with it ends, and returns why it ended."""
        ...

    def crashed(self, target: McpTarget) -> None:
        """Records that a program ended by itself."""
        ...

    def is_full(self, organization_id: str) -> bool:
        """Returns whether the organization can have no further program now."""
        ...

    def forget(self, organization_id: str, server_id: str) -> None:
        """Forgets the crashes of a server whose settings have changed."""
        ...


@dataclass(frozen=True, slots=True)
class Transports:
    """What transports need."""

    allowed: Allowed | None
    """Decides which addresses may be reached; None permits all of them."""
    limits: McpLimits
    programs: Programs
    authorization: Callable[[McpTarget], httpx2.Auth | None]

    @asynccontextmanager
    async def open(
        self, target: McpTarget, output: ProgramOutput, on_status: Callable[[int], None]
    ) -> AsyncIterator[Any]:
        """Yields the streams of messages of a server.

        Args:
            target: The server.
            output: Keeps what a program writes beside its messages.
            on_status: Receives the HTTP status of each answer.
        """
        if target.transport is TransportType.STDIO:
            run = partial(self.programs.run, target, output=lambda: output.text)
            try:
                async with program_streams(run, output) as streams:
                    yield streams
            except ProgramEnded:
                self.programs.crashed(target)
                raise
            return

        def client(*_: Any, **__: Any) -> httpx2.AsyncClient:
            return self.http_client(target, self.authorization(target), on_status)

        if target.transport is TransportType.SSE:
            async with sse_client(target.url, httpx_client_factory=client) as streams:
                yield streams
            return
        async with (
            client() as opened,
            streamable_http_client(target.url, http_client=opened, max_sse_event_size=MAX_EVENT_BYTES) as streams,
        ):
            yield streams

    def http_client(
        self, target: McpTarget, auth: httpx2.Auth | None, on_status: Callable[[int], None]
    ) -> httpx2.AsyncClient:
        """Returns an HTTP client for a server."""
        return open_http_client(target.headers, self.allowed, self.limits.connect_seconds, on_status, auth)
