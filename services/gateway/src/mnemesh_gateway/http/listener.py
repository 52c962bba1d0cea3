"""The HTTP server: uvicorn, in the life cycle of the kit."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import uvicorn
from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.tls.reloaded import CertificateFiles
from starlette.types import ASGIApp

from mnemesh_gateway.config import Config
from mnemesh_gateway.http.connections import HEAD_SECONDS, GatheringProtocol, OpenConnections

_BACKLOG: Final = 2048
_IDLE_SECONDS: Final = 75
_TLS_PREFIX: Final = "MNEMESH_GATEWAY_TLS"
_OWN_FILES: Final = 512
"""The open files that are left for the rest of the process."""


class _Server(uvicorn.Server):
    """uvicorn with our connections, and without signal handlers: the kit has them."""

    def __init__(self, settings: uvicorn.Config, connections: OpenConnections) -> None:
        super().__init__(settings)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections."""

        def connection() -> GatheringProtocol:
            return GatheringProtocol(self.config, self.server_state, self.lifespan.state, self._connections)

        context = self.config.ssl
        tls: dict[str, Any] = {"ssl": context, "ssl_handshake_timeout": HEAD_SECONDS} if context is not None else {}
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(connection, sock=each, backlog=_BACKLOG, **tls) for each in sockets or ()
        ]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals alone."""
        yield


class HttpListener:
    """A `Listener` that is an HTTP server. It sets `stopping` when it begins to stop."""

    def __init__(self, app: ASGIApp, config: Config, stopping: asyncio.Event) -> None:
        self._config = config
        self._stopping = stopping
        self._settings = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
        )
        self._settings.load()
        self._settings.ssl = tls_context(config)
        total = min(config.max_connections, _spare_files(config.max_connections))
        self._server = _Server(self._settings, OpenConnections(total, config.max_connections_per_address))
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    def bind(self) -> str:
        """See `Listener`."""
        host, port = self._config.host, self._config.port
        if host.startswith("unix:"):
            raise StartupError("The gateway cannot listen on a Unix socket. Set MNEMESH_GATEWAY_HOST to an address.")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
            # Connections inherit it. asyncio sets it only for sockets that were created with the number of TCP. Without
            # it, the body of a response waits 40 ms for the acknowledgement of its head.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise StartupError(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from error
        name = f"[{host}]" if ":" in host else host
        return f"{name}:{self._socket.getsockname()[1]}"

    async def serve(self) -> None:
        """See `Listener`."""
        assert self._socket is not None, "a listener is bound before it serves"  # noqa: S101
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise StartupError("The HTTP server has ended.")
            await asyncio.sleep(0.001)

    async def stop(self, grace_seconds: float) -> None:
        """See `Listener`. Open streams end by themselves within the grace period."""
        self._settings.timeout_graceful_shutdown = max(1, round(grace_seconds)) if grace_seconds else 0
        self._server.should_exit = True
        self._stopping.set()
        if self._serving is not None:
            await self._serving
        if self._socket is not None:
            self._socket.close()


def _spare_files(wanted: int) -> int:
    """Returns how many connections the process may have open. Its limit of open files is raised if that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted + _OWN_FILES:
        most = wanted + _OWN_FILES if hard == resource.RLIM_INFINITY else min(hard, wanted + _OWN_FILES)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    return max(soft - _OWN_FILES, soft // 2)


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Returns the context of TLS connections, which take a replaced certificate; None without TLS.

    Raises:
        ConfigError: a file is missing or wrong.
    """
    if config.tls_cert_file is None:
        if config.tls_key_file is not None:
            raise ConfigError(f"{_TLS_PREFIX}_CERT_FILE must be set with {_TLS_PREFIX}_KEY_FILE.")
        return None
    files = CertificateFiles(config.tls_cert_file, config.tls_key_file, _TLS_PREFIX)
    context = newest = _context_of(config)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal newest
        if files.refresh():
            newest = _context_of(config)
        connection.context = newest

    # OpenSSL calls it for every handshake, also if the client names no server.
    context.sni_callback = choose
    return context


def _context_of(config: Config) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(config.tls_cert_file or "").expanduser(), Path(config.tls_key_file or "").expanduser())
    return context
