"""A server over HTTP whose refusals and errors a test sets. It is written without the SDK, which has none of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request, dict[str, Any]], Any]
"""Returns the response to a call of a tool, or None for that of a tool that echoes."""


def rpc_error(status: int, code: int, message: str) -> Answer:
    """Returns an answer with a JSON-RPC error."""
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}

    def answer(_: web.Request, asked: dict[str, Any]) -> web.Response:
        return web.json_response({**body, "id": asked["id"] if status == 200 else None}, status=status)

    return answer


def plain(status: int, text: str = "") -> Answer:
    """Returns an answer without JSON."""
    return lambda _, __: web.Response(status=status, text=text)


@dataclass
class Scripted:
    """A server with sessions. It forgets them when it `restarts`."""

    tools: list[dict[str, Any]] = field(default_factory=lambda: [{"name": "echo", "inputSchema": {"type": "object"}}])
    refusal: Answer = field(default_factory=lambda: rpc_error(404, -32001, "Session not found"))
    """The answer to a request of an unknown session."""
    answer: Answer = lambda _, __: None
    """The answer to a call of a tool."""
    result: dict[str, Any] | None = None
    runs: int = 0
    sessions: set[str] = field(default_factory=set)
    url: str = ""
    events: web.StreamResponse | None = None
    """The stream of the transport SSE."""

    def restart(self) -> None:
        """Forgets all sessions."""
        self.sessions.clear()

    async def open_events(self, request: web.Request) -> web.StreamResponse:
        """Opens the stream of the transport SSE, which the next one replaces."""
        response = self.events = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        name = f"session-{len(self.sessions)}"
        self.sessions.add(name)
        await response.write(f"event: endpoint\ndata: /messages?session={name}\n\n".encode())
        while self.events is response:
            await asyncio.sleep(0.01)
        return response

    async def receive_message(self, request: web.Request) -> web.Response:
        """Receives a message of the transport SSE, whose answer is an event."""
        asked = await request.json()
        if request.query["session"] not in self.sessions:
            return web.Response(status=404, text="Could not find session")
        if "id" in asked and self.events is not None:
            answer = await self.handle(request)
            assert isinstance(answer, web.Response)
            await self.events.write(f"event: message\ndata: {answer.text}\n\n".encode())
        return web.Response(status=202, text="Accepted")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers a request."""
        if request.method != "POST":
            return web.Response(status=405 if request.method == "GET" else 200)
        asked = await request.json()
        method, own = asked.get("method"), {"jsonrpc": "2.0", "id": asked.get("id")}
        if method == "server/discover":
            return web.json_response({**own, "error": {"code": -32601, "message": "unknown"}}, status=404)
        if method == "initialize":
            name = f"session-{len(self.sessions)}-{id(request)}"
            self.sessions.add(name)
            about = {"name": "scripted", "version": "1"}
            version = asked["params"]["protocolVersion"]
            found = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
            return web.json_response({**own, "result": found}, headers={"mcp-session-id": name})
        if request.headers.get("mcp-session-id", request.query.get("session")) not in self.sessions:
            refused: web.Response = self.refusal(request, asked)
            return refused
        if "id" not in asked:
            return web.Response(status=202)
        if method == "tools/list":
            return web.json_response({**own, "result": {"tools": self.tools}})
        answered = self.answer(request, asked)
        if answered is not None:
            return await answered if isawaitable(answered) else answered  # type: ignore[no-any-return]
        self.runs += 1
        text = {"content": [{"type": "text", "text": json.dumps(asked["params"].get("arguments"))}]}
        return web.json_response({**own, "result": text if self.result is None else self.result})


@asynccontextmanager
async def scripted(**settings: Any) -> AsyncIterator[Scripted]:
    """Runs a server."""
    server = Scripted(**settings)
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    app.router.add_get("/sse", server.open_events)
    app.router.add_post("/messages", server.receive_message)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    try:
        yield server
    finally:
        server.events = None
        await runner.cleanup()
