"""The HTTP server: uvicorn, in the life cycle of the kit."""

import asyncio
import ipaddress
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast

import structlog
import uvicorn
from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.tls.reloaded import CertificateFiles
from starlette.types import ASGIApp
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from mnemesh_gateway.config import Config

_DATE_SECONDS: Final = 1.0
HEAD_SECONDS: Final = 20.0
"""How long a client may take for the head of a request, and for a TLS handshake."""
REST_SECONDS: Final = 5.0
"""How long a client may go on sending a body after its request was answered."""
READ_SECONDS: Final = 120.0
"""How long a client may read nothing of an answer that fills its connection."""
_HEAD_BYTES: Final = 64 * 1024
"""The largest head of a request, and the most bytes of a body's chunks that are not its contents."""
_FRAMING: Final = 8
"""The bytes around each byte of a body that are not counted: a client may send chunks of one byte."""
_MOST_BYTES: Final = 64 * 1024
"""The size from which writes are sent at once, so that the flow control of the connection sees them."""
_LOG_SECONDS: Final = 60.0
_log = structlog.get_logger("mnemesh.http")

_BACKLOG: Final = 2048
_IDLE_SECONDS: Final = 75
_TLS_PREFIX: Final = "MNEMESH_GATEWAY_TLS"
_OWN_FILES: Final = 512
"""The open files that are left for the rest of the process."""


class OpenConnections:
    """The open connections, bounded per address and in sum.

    If there are too many, the one that has waited longest without a request is closed for a new one. If all have
    requests, the new one is closed.

    Args:
        total: the most connections.
        per_address: the most connections of one address. An IPv6 address counts as its network of 64 bits.
    """

    def __init__(self, total: int, per_address: int) -> None:
        self._total = total
        self._per_address = per_address
        self._addresses: dict[GatheringProtocol, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[str, dict[GatheringProtocol, None]] = {}
        self._logged = -_LOG_SECONDS

    def enter(self, connection: "GatheringProtocol", address: str) -> bool:
        """Adds a connection that waits for its first request. Returns whether there is room."""
        if self._counts[address] >= self._per_address:
            has_room = self._close_one(address)
        else:
            has_room = len(self._addresses) < self._total or self._close_one(None)
        if not has_room:
            return False
        self._addresses[connection] = address
        self._counts[address] += 1
        self.wait(connection)
        return True

    def leave(self, connection: "GatheringProtocol") -> None:
        """Removes a connection."""
        self.work(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def wait(self, connection: "GatheringProtocol") -> None:
        """Notes that a connection waits for a request."""
        address = self._addresses.get(connection)
        if address is not None:
            self._waiting.setdefault(address, {})[connection] = None

    def work(self, connection: "GatheringProtocol") -> None:
        """Notes that a connection has a request."""
        address = self._addresses.get(connection, "")
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._waiting[address]

    def _close_one(self, address: str | None) -> bool:
        """Closes the oldest waiting connection of an address; None: of the address that has most of them."""
        now = time.monotonic()
        if now - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.warning("too_many_connections", open=len(self._addresses), address=address)
        if address is None and self._waiting:
            address = max(self._waiting, key=lambda each: len(self._waiting[each]))
        waiting = self._waiting.get(address or "")
        if not waiting:
            return False
        oldest = next(iter(waiting))
        self.leave(oldest)
        oldest.transport.close()
        return True


class GatheringProtocol(HttpToolsProtocol):
    """uvicorn's connection, with limits for clients that send slowly, too much, or nothing.

    Each write of uvicorn's is a packet: a client that has read the head of an answer waits again. This one sends in one
    packet what is written at the same time.
    """

    def __init__(
        self, config: UvicornConfig, server_state: ServerState, app_state: dict[str, Any], connections: OpenConnections
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._open_connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_message = False
        self._overhead = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._gathered = _Gathered(cast("asyncio.Transport", transport), self.loop)
        self.transport = self._gathered
        if not self._open_connections.enter(self, _network(transport.get_extra_info("peername"))):
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(self._gathered)
        self._close_in(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._gathered.end()
        self._stop_timer()
        self.resume_writing()
        self._unset_keepalive_if_required()
        self._open_connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._timer is None and not self._in_message and self._is_answered():
            self._close_in(HEAD_SECONDS)  # data that is not a request must not keep the connection open
        self._overhead += len(data)
        super().data_received(data)
        if self._overhead > _HEAD_BYTES and not self.transport.is_closing():
            self._refuse()

    def on_headers_complete(self) -> None:
        """Begins a request."""
        self._stop_timer()
        self._in_message = True
        self._open_connections.work(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body."""
        self._overhead = max(0, self._overhead - (1 + _FRAMING) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Ends the body of a request."""
        self._in_message, self._overhead = False, 0
        if self._is_answered():
            self._open_connections.wait(self)
            self._close_in(self.timeout_keep_alive)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Sends the end of an answer before other work."""
        self._gathered.flush()
        super().on_response_complete()
        if self.transport.is_closing() or not self._is_answered():
            return
        if self._in_message:
            # The rest of the body is read for a moment, so that the client can read the answer.
            self._close_in(REST_SECONDS)
        else:
            self._open_connections.wait(self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(READ_SECONDS, self._gathered.abort)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self.flow is not None:
            super().resume_writing()

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self) -> None:
        """Closes the connection of a client that sends too much, with an answer if none was begun."""
        if self._is_answered():
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()


def _network(peer: Any) -> str:
    """Returns what counts as one address."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))


class _Gathered(asyncio.Transport):
    """A transport that sends what is written when the current callback of the loop has ended."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0
        self._end: asyncio.TimerHandle | None = None

    def write(self, data: Any) -> None:
        """Sends data, with what follows it at once."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= _MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sends what was written. It is lost if the connection is."""
        if self._parts:
            data, self._parts, self._size = b"".join(self._parts), [], 0
            if not self._transport.is_closing():
                self._transport.write(data)

    def close(self) -> None:
        """Closes the connection when what was written is sent."""
        self.flush()
        self._transport.close()
        if self._end is None:  # a client that reads nothing cannot keep it open
            self._end = self._loop.call_later(READ_SECONDS, self._transport.abort)

    def end(self) -> None:
        """Notes that the connection is lost."""
        if self._end is not None:
            self._end.cancel()

    def abort(self) -> None:
        """Closes the connection at once."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """Returns whether the connection is closed, or will be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns a fact about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stops reading."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        self._transport.resume_reading()


class _Server(uvicorn.Server):
    """uvicorn with our connections, and without signal handlers: the kit has them."""

    def __init__(self, settings: uvicorn.Config, connections: OpenConnections, stopping: asyncio.Event) -> None:
        super().__init__(settings)
        self._connections = connections
        self._stopping = stopping

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

    async def main_loop(self) -> None:
        """Renews the date of responses each second, until the end. uvicorn's own wakes ten times as often."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _DATE_SECONDS)

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
        self._server = _Server(self._settings, OpenConnections(total, config.max_connections_per_address), stopping)
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
