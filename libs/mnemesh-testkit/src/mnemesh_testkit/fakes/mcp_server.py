"""MCP servers on loopback, written with the official SDK."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

PNG = base64.b64decode("iVBORw0KGgo=")
ECHO = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


@dataclass
class Remote:
    """A server whose tools and faults a test sets."""

    tools: dict[str, dict[str, Any]] = field(default_factory=lambda: {"echo": ECHO})
    token: str | None = None
    location: str | None = None
    """Answers every request with a redirect to this URL."""
    hangs: bool = False
    """Lists of tools do not end."""
    cursors: Iterator[str] = field(default_factory=lambda: iter(()))
    """Each page of tools names the next of them as the cursor of another page."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: int = 0
    """The number of sessions that began."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    """The tool "steps" reports half of its progress, and waits for this."""
    url: str = ""
    _web: uvicorn.Server | None = None
    _task: asyncio.Task[None] | None = None

    async def start(self, kind: str = "streamable_http") -> None:
        """Serves at the port of before, or at a free one."""
        port = int(self.url.split(":")[2].split("/")[0]) if self.url else 0
        listener = socket.create_server(("127.0.0.1", port))
        path = "/sse" if kind == "sse" else "/mcp"
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        server = Server("remote", on_list_tools=self._list, on_call_tool=self._call)
        app = _sse_app(server) if kind == "sse" else server.streamable_http_app()
        config = uvicorn.Config(self._guarded(app), log_config=None, lifespan="on", timeout_graceful_shutdown=0)
        self._web = uvicorn.Server(config)
        self._web.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._task = asyncio.create_task(self._web.serve(sockets=[listener]))

    async def stop(self) -> None:
        """Ends every connection and the server."""
        assert self._web is not None
        assert self._task is not None
        self.drop()
        self._web.should_exit = self._web.force_exit = True
        await self._task

    def drop(self) -> None:
        """Breaks every connection."""
        assert self._web is not None
        for connection in list(self._web.server_state.connections):
            connection.transport.abort()

    async def _list(self, *_: Any) -> types.ListToolsResult:
        if self.hangs:
            await asyncio.Event().wait()
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=f"Runs {name}.", input_schema=schema)
                for name, schema in self.tools.items()
            ],
            next_cursor=next(self.cursors, None),
        )

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        self.calls.append((params.name, arguments))
        self.entered.set()
        match params.name:
            case "hang":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
            case "die":
                self.drop()
                await asyncio.Event().wait()
            case "steps":
                await context.session.report_progress(1, 2, "half of it")
                await self.proceed.wait()
                await context.session.report_progress(2, 2)
            case "fail":
                return types.CallToolResult(content=[types.TextContent(text="It failed.")], is_error=True)
            case "long":
                return types.CallToolResult(content=[types.TextContent(text="x" * 200_000)])
            case "picture":
                image = types.ImageContent(data=base64.b64encode(PNG).decode(), mime_type="image/png")
                return types.CallToolResult(
                    content=[types.TextContent(text="See:"), image], structured_content={"width": 1}
                )
        return types.CallToolResult(content=[types.TextContent(text=json.dumps(arguments))])

    def _guarded(self, app: Any) -> Callable[..., Awaitable[None]]:
        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.headers.append(headers)
            if self.location is not None:
                await Response(status_code=307, headers={"location": self.location})(scope, receive, send)
            elif self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
                text = f"unknown token {headers.get('authorization')}"
                await Response(text, status_code=401)(scope, receive, send)
            else:
                self.connections += "mcp-session-id" not in headers and scope["method"] == "POST"
                await app(scope, receive, send)

        return guarded


def _sse_app(server: Server[Any]) -> Starlette:
    transport = SseServerTransport("/messages/")

    async def connect(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", transport.handle_post_message)])


@asynccontextmanager
async def running(kind: str = "streamable_http", **settings: Any) -> AsyncIterator[Remote]:
    """Runs a server."""
    remote = Remote(**settings)
    await remote.start(kind)
    try:
        yield remote
    finally:
        await remote.stop()
