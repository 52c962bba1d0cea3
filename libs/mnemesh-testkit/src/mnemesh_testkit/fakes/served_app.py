"""An application on a free loopback port, for the fakes of servers over HTTP."""

import asyncio
import socket
from typing import Any

import uvicorn


class ServedApp:
    """An ASGI application that is being served."""

    def __init__(self, app: Any, listener: socket.socket, *, lifespan: bool = False, grace_seconds: int = 1) -> None:
        """Serves at the port of `listener`. `stop` waits for connections that are open, for `grace_seconds` at most."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="critical",
                lifespan="on" if lifespan else "off",
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))

    def drop(self) -> None:
        """Breaks every connection."""
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    async def stop(self) -> None:
        """Ends the server."""
        self._server.should_exit = True
        await self._serving

    async def abort(self) -> None:
        """Breaks every connection and ends the server."""
        self.drop()
        self._server.force_exit = True
        await self.stop()


def listen(port: int = 0) -> tuple[socket.socket, str]:
    """Returns a socket that listens on loopback, and the URL of it."""
    listener = socket.create_server(("127.0.0.1", port))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"
