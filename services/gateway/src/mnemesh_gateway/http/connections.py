"""HTTP connections: bounded in number and in the time of what a client sends, and few packets per answer."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from typing import Any, Final, cast

import structlog
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

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

    def enter(self, connection: GatheringProtocol, address: str) -> bool:
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

    def leave(self, connection: GatheringProtocol) -> None:
        """Removes a connection."""
        self.work(connection)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def wait(self, connection: GatheringProtocol) -> None:
        """Notes that a connection waits for a request."""
        address = self._addresses.get(connection)
        if address is not None:
            self._waiting.setdefault(address, {})[connection] = None

    def work(self, connection: GatheringProtocol) -> None:
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
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], connections: OpenConnections
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
            self._close_in(HEAD_SECONDS)  # data that is no request must not keep the connection open
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
