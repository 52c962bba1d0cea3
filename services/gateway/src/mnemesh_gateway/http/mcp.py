"""/mcp: the memory of agents for MCP clients, over streamable HTTP."""

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final

from mnemesh_client import Mnemesh
from mnemesh_kit.call_context import current_principal
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemesh_gateway.errors import BodyTooLarge
from mnemesh_gateway.http.body import Bodies
from mnemesh_gateway.usecases.agents import AgentService

MCP_PATH: Final = "/mcp"
_MAX_BYTES: Final = 4 << 20
_MAX_VALUES: Final = 20_000
_bound: ContextVar[str | None] = ContextVar("mnemesh_mcp_agent", default=None)
"""The id of the agent to which the path of a request binds its tools."""


class McpEndpoint:
    """An ASGI application. The SDK is imported at the first request, because it takes 40 MB and a second.

    Requests have no session on the server: each is answered for its own principal, by any replica.
    """

    def __init__(self, client: Mnemesh, agents: AgentService, bodies: Bodies) -> None:
        self._agents = agents
        self._bodies = bodies
        # Its calls are for the current principal, which the guard has set for the task of the request.
        self._client = client
        self._lock = asyncio.Lock()
        self._app: ASGIApp | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request. A path below `MCP_PATH` is the id or the unique name of the agent that the tools use."""
        key = scope["path"].removeprefix(MCP_PATH).strip("/")
        if key:
            _bound.set((await self._agents.find(current_principal(), key)).id)
        scope = {**scope, "path": MCP_PATH, "raw_path": MCP_PATH.encode()}
        app = self._app or await self._start()
        if scope["method"] != "POST":
            await app(scope, receive, send)
            return
        async with self._bodies.read_converted(Request(scope, receive), bytes, _MAX_VALUES) as body:
            if len(body) > _MAX_BYTES:
                raise BodyTooLarge(f"The body of an MCP request must be at most {_MAX_BYTES >> 20} MB.")
            await app(scope, _replayed(body, receive), send)

    async def close(self) -> None:
        """Ends what runs."""
        self._stopping.set()
        if self._running is not None:
            with suppress(asyncio.CancelledError):
                await self._running

    async def _start(self) -> ASGIApp:
        async with self._lock:
            if self._app is None:
                await asyncio.to_thread(import_module, "mnemesh_client.mcp_server")
                app = self._create()
                started = asyncio.Event()
                self._running = asyncio.create_task(self._run(app, started))
                await started.wait()
                self._app = app
            return self._app

    def _create(self) -> Any:
        from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415
        from mnemesh_client.mcp_server import memory_server  # noqa: PLC0415

        return memory_server(lambda _: self._client, bound=_bound.get).streamable_http_app(
            streamable_http_path=MCP_PATH,
            stateless_http=True,
            max_request_body_size=_MAX_BYTES,
            # The guard has checked the host and the origin.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    async def _run(self, app: Any, started: asyncio.Event) -> None:
        """Keeps the server of the SDK running; it must begin and end in one task."""
        async with app.router.lifespan_context(app):
            started.set()
            await self._stopping.wait()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Returns a function that receives a body that was read before, and then what follows it."""
    is_first = True

    async def received() -> Message:
        nonlocal is_first
        if not is_first:
            return await receive()
        is_first = False
        return {"type": "http.request", "body": body, "more_body": False}

    return received
