"""The HTTP side of a fake provider: a uvicorn server on a free loopback port, and how each fault leaves it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mnemesh_testkit.fakes.script import Fault, Player, Recorded, Reply, Script


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
        return self._event_stream(self._gated(reply, body))

    async def _gated(self, reply: Reply, body: dict[str, Any]) -> AsyncIterator[bytes]:
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
                return self._event_stream(self._broken(fault, body))
            case "hang":
                release = fault.release or asyncio.Event()
                self._releases.append(release)
                await release.wait()
                return self._good(fault.reply, body)
            case _:
                status, error = self._error(fault)
                return JSONResponse(error, status, dict(fault.headers))

    async def _broken(self, fault: Fault, body: dict[str, Any]) -> AsyncIterator[bytes]:
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
