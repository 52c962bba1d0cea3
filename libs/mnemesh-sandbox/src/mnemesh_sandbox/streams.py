"""The streams of a sandbox process: those of a tool are collected, and with a program its caller talks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamReader], Coroutine[Any, Any, None]]
"""Reads the standard output of a program, writes to its standard input, and reads its standard error.

It returns when it needs the program no more, or when the streams have ended; then the standard input is closed.
"""
_BUFFER_BYTES: Final = 65_536
_DROPPED_SECONDS: Final = 0.002
"""The pause after a part that is dropped, so that endless output does not occupy the event loop."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The beginning of what a pipe carried, and the number of bytes after it."""

    data: bytes
    dropped: int


async def collect(fd: int, limit: int, seen: Callable[[bytes], None] | None = None) -> Captured:
    """Returns the beginning of what a pipe carries until its end. Closes the descriptor.

    Args:
        fd: The descriptor.
        limit: The number of bytes to keep.
        seen: Receives each part when it arrives.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    kept, dropped = bytearray(), 0
    try:
        while chunk := await reader.read(_BUFFER_BYTES):
            if seen is not None:
                seen(chunk)
            part = chunk[: limit - len(kept)]
            kept += part
            dropped += len(chunk) - len(part)
            if not part:
                await asyncio.sleep(_DROPPED_SECONDS)
    finally:
        transport.close()
    return Captured(bytes(kept), dropped)


async def talk_with(stdin: int, stdout: int, stderr: int, talk: Talk) -> None:
    """Runs `talk` on the descriptors of a program's streams, and closes them."""
    loop = asyncio.get_running_loop()
    reading: list[tuple[asyncio.StreamReader, asyncio.ReadTransport]] = []
    left = [stdin, stdout, stderr]
    transport: asyncio.WriteTransport | None = None
    try:
        for descriptor in (stdout, stderr):
            left.remove(descriptor)
            reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
            pipe = os.fdopen(descriptor, "rb", buffering=0)
            opened, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            reading.append((reader, opened))
        left.remove(stdin)
        protocol = _Writing()
        transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(stdin, "wb", buffering=0))
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        await talk(reading[0][0], writer, reading[1][0])
    finally:
        for number in left:
            os.close(number)
        for _, opened in reading:
            opened.close()
        if transport is not None:
            transport.abort()


class _Writing(asyncio.streams.FlowControlMixin):
    """The protocol of a pipe that is only written to."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)

    def _get_close_waiter(self, stream: asyncio.StreamWriter) -> asyncio.Future[None]:  # noqa: ARG002
        return self._closed
