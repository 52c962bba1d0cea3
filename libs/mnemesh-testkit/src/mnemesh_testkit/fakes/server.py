"""The HTTP server of the fake models, and the script of their answers."""

import asyncio
import inspect
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

AUTOMATIC: Final = "\0automatic"
"""An id that the fake chooses."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: arguments as an object, or as raw text that may be no JSON. `id` None leaves the id out."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = AUTOMATIC
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the call, as servers of chat completions add them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token figures. None leaves a figure out."""

    input: int | None = 11
    output: int | None = 7
    cached: int | None = None
    cache_written: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A good answer.

    `finish_reason` None follows from the content; `usage` None reports none. `gates` hold back the pieces of the text:
    the piece at position n is sent once gate n is set. `is_plain` answers with one JSON body though a
    stream was asked for.
    """

    text: str | None = None
    tool_calls: Sequence[Call | tuple[Any, ...]] = ()
    reasoning: str | None = None
    signature: str | None = None
    redacted: str | None = None
    refusal: str | None = None
    usage: Usage | None = Usage()
    finish_reason: str | None = None
    piece_size: int = 8
    gates: Sequence[asyncio.Event] = ()
    is_plain: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the message, as servers of chat completions add them."""
    blocks: Sequence[Mapping[str, Any]] = ()
    """All blocks of a message of Anthropic's API, instead of those that follow from the other values."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls; tuples are (name, arguments) or (name, arguments, id)."""
        return tuple(call if isinstance(call, Call) else Call(*call) for call in self.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A bad answer; made by the functions below."""

    kind: str
    status: int = 200
    message: str = ""
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    reply: Reply = Reply(text="An answer that never ends well.")
    after: int = 0
    release: asyncio.Event | None = None


def status(code: int, message: str = "The fake refuses.", *, error_code: str | None = None, **headers: str) -> Fault:
    """An error status in the provider's own shape. Header names take underscores: `retry_after="2"`."""
    return Fault(
        kind="status",
        status=code,
        message=message,
        code=error_code,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def rate_limited(retry_after: float | None = None) -> Fault:
    """429, with Retry-After where given."""
    headers = {} if retry_after is None else {"retry_after": f"{retry_after:g}"}
    return status(429, "Rate limit reached for requests.", **headers)


def overloaded() -> Fault:
    """529 as Anthropic sends it (503 from OpenAI)."""
    return Fault(kind="overloaded", message="Overloaded")


def context_overflow(tokens: int = 210_000, limit: int = 200_000) -> Fault:
    """The provider's own way of saying that the prompt is too long."""
    return Fault(kind="context_overflow", status=400, after=tokens, message=str(limit))


def html_page(code: int = 502) -> Fault:
    """The response of a proxy between client and provider."""
    page = b"<!DOCTYPE html><html><body><h1>Bad gateway</h1><p>secret internals</p></body></html>"
    return Fault(kind="body", status=code, body=page, headers={"content-type": "text/html"})


def garbage(*, streamed: bool = True) -> Fault:
    """200 with text that is not JSON, as an event of a stream or as the whole body."""
    if streamed:
        return Fault(kind="body", body=b'data: {"id": "x", "choi\n\n', headers={"content-type": "text/event-stream"})
    return Fault(kind="body", body=b"{not json at all", headers={"content-type": "application/json"})


def empty_answer() -> Fault:
    """200 with a well-formed answer that holds no choice and no content."""
    return Fault(kind="empty")


def cut_stream(reply: Reply | None = None, *, after: int = 2, is_clean: bool = False) -> Fault:
    """The first `after` events of a reply, then the connection breaks, or (`is_clean`) the body just ends."""
    return Fault(
        kind="clean_cut" if is_clean else "cut", reply=reply or Reply(text="A long answer that is cut."), after=after
    )


def error_event(code: str = "overloaded_error", message: str = "Overloaded", *, after: int = 2) -> Fault:
    """A stream that begins well and then carries an error."""
    return Fault(kind="error_event", code=code, message=message, after=after)


def hang(release: asyncio.Event | None = None) -> Fault:
    """No byte until `release` is set (or the fake closes), then the reply."""
    return Fault(kind="hang", release=release or asyncio.Event(), reply=Reply(text="At last."))


def raw_stream(*lines: str) -> Fault:
    """An event stream given line by line, for shapes that only some servers send."""
    return Fault(kind="body", body="".join(f"{line}\n" for line in lines).encode(), headers=_EVENT_STREAM)


_EVENT_STREAM: Final = {"content-type": "text/event-stream"}

Answer: TypeAlias = Reply | Fault | str
Script: TypeAlias = Sequence[Answer] | Callable[[dict[str, Any]], Answer | Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request as it came: its decoded body, its exact bytes, its headers in lower case."""

    path: str
    body: dict[str, Any]
    raw: bytes
    headers: Mapping[str, str]


class Player:
    """Plays a script: a sequence once through, or a function of each request's body. A plain string is a Reply."""

    def __init__(self, script: Script) -> None:
        self._next = 0
        self.script = script

    @property
    def script(self) -> Script:
        """The script. Setting it starts from its beginning."""
        return self._script

    @script.setter
    def script(self, script: Script) -> None:
        self._script = script
        self._next = 0

    async def answer(self, body: dict[str, Any]) -> Reply | Fault:
        """The answer to the next request.

        Raises:
            IndexError: the script has no more answers.
        """
        if callable(self._script):
            given = self._script(body)
            answer = await given if inspect.isawaitable(given) else given
        else:
            answer = self._script[self._next]
            self._next += 1
        return Reply(text=answer) if isinstance(answer, str) else answer


def pieces(text: str, size: int) -> list[str]:
    """The text in pieces of `size` characters."""
    return [text[start : start + size] for start in range(0, len(text), size)]


class ConnectionDropped(Exception):
    """Raised inside of a response's body, so that the server breaks the connection off."""


class FakeProvider:
    """A provider on loopback; an async context manager.

    Subclasses know the wire: `_path`, `_events`, `_whole`, `_error`, `_empty`.
    """

    _path = "/"

    def __init__(self, script: Script = ()) -> None:
        self.player = Player(script)
        self.requests: list[Recorded] = []
        self._port = 0
        self._releases: list[asyncio.Event] = []

    @property
    def script(self) -> Script:
        """The script of responses. It can be replaced at any time."""
        return self.player.script

    @script.setter
    def script(self, script: Script) -> None:
        self.player.script = script

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return self.origin

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        app = Starlette(routes=[Route(self._path, self._answer, methods=["POST"]), *self._more_routes()])
        config = uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off", access_log=False, ws="none")
        config.load()
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])
        return self

    async def __aexit__(self, *_: object) -> None:
        for release in self._releases:
            release.set()
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        tasks = list(self._server.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._server.servers:
            await server.wait_closed()

    def _more_routes(self) -> Sequence[Route]:
        return ()

    def _events(self, reply: Reply, body: dict[str, Any]) -> Iterator[tuple[bytes, int | None]]:
        """The stream's events as bytes, each with the ordinal of its piece of text where it is one."""
        raise NotImplementedError

    def _whole(self, reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def _error(self, fault: Fault) -> tuple[int, dict[str, Any]]:
        raise NotImplementedError

    def _error_event(self, fault: Fault) -> bytes:
        raise NotImplementedError

    def _empty(self, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        raise NotImplementedError

    async def _answer(self, request: Request) -> Response:
        raw = await request.body()
        body = json.loads(raw)
        self.requests.append(Recorded(request.url.path, body, raw, dict(request.headers)))
        try:
            answer = await self.player.answer(body)
        except IndexError:
            return JSONResponse({"error": {"message": "The fake's script is at its end."}}, status_code=501)
        return self._good(answer, body) if isinstance(answer, Reply) else await self._bad(answer, body)

    def _good(self, reply: Reply, body: dict[str, Any]) -> Response:
        if reply.is_plain or not body.get("stream"):
            return JSONResponse(self._whole(reply, body))
        return self._event_stream(self._gate(reply, body))

    async def _gate(self, reply: Reply, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for event, ordinal in self._events(reply, body):
            if ordinal is not None and ordinal < len(reply.gates):
                self._releases.append(reply.gates[ordinal])
                await reply.gates[ordinal].wait()
            yield event

    async def _bad(self, fault: Fault, body: dict[str, Any]) -> Response:
        match fault.kind:
            case "body":
                return Response(fault.body, fault.status, dict(fault.headers))
            case "empty":
                streamed, plain = self._empty(body)
                return self._event_stream(_once(streamed)) if body.get("stream") else JSONResponse(plain)
            case "cut" | "clean_cut" | "error_event":
                return self._event_stream(self._break(fault, body))
            case "hang":
                release = fault.release or asyncio.Event()
                self._releases.append(release)
                await release.wait()
                return self._good(fault.reply, body)
            case _:
                status, error = self._error(fault)
                return JSONResponse(error, status, dict(fault.headers))

    async def _break(self, fault: Fault, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for position, (event, _) in enumerate(self._events(fault.reply, body)):
            if position == fault.after:
                break
            yield event
        if fault.kind == "error_event":
            yield self._error_event(fault)
        if fault.kind == "cut":
            raise ConnectionDropped

    @staticmethod
    def _event_stream(body: AsyncIterator[bytes]) -> Response:
        return StreamingResponse(body, media_type="text/event-stream")


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
