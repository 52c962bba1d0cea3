"""/mcp: the memory of agents for MCP clients, over streamable HTTP."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from mnemesh_client import Mnemesh
from starlette.types import ASGIApp, Receive, Scope, Send

from mnemesh_gateway.config import Config

MCP_PATH: Final = "/mcp"


class McpEndpoint:
    """An ASGI application. The SDK is imported at the first request, because it takes 40 MB and a second.

    Requests have no session on the server: each is answered for its own principal, by any replica.
    """

    def __init__(self, config: Config, client: Mnemesh) -> None:
        self._config = config
        # Its calls are for the current principal, which the guard has set for the task of the request.
        self._client = client
        self._lock = asyncio.Lock()
        self._app: ASGIApp | None = None
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        app = self._app or await self._start()
        await app(scope, receive, send)

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

        return memory_server(lambda _: self._client).streamable_http_app(
            streamable_http_path=MCP_PATH,
            stateless_http=True,
            max_request_body_size=self._config.max_body_mb << 20,
            # The guard has checked the host and the origin.
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    async def _run(self, app: Any, started: asyncio.Event) -> None:
        """Keeps the server of the SDK running; it must begin and end in one task."""
        async with app.router.lifespan_context(app):
            started.set()
            await self._stopping.wait()
