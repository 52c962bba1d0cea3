"""HTTP connections that send in one packet what is written at the same time."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BYTES: Final = 64 * 1024
"""The size from which writes are sent at once, so that the flow control of the connection sees them."""


class GatheringProtocol(HttpToolsProtocol):
    """uvicorn's connection. Each write of it is a packet: a client that has read the head of an answer waits again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._gathered = _Gathered(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(self._gathered)

    def on_response_complete(self) -> None:
        """Sends the end of an answer before other work."""
        self._gathered.flush()
        super().on_response_complete()


class _Gathered(asyncio.Transport):
    """A transport that sends what is written when the current callback of the loop has ended."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

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
