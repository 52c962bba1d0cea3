"""An open transport in the form that the client of the SDK accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mnemesh_tools.mcp_clients.received import acceptable


class OpenTransport:
    """An open transport in the form that `Client` accepts. The session closes it."""

    def __init__(self, streams: Any, on_end: Callable[[], None]) -> None:
        reader, writer = streams
        self._streams = _WatchedStream(reader, on_end), writer

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


class _WatchedStream:
    """The stream of the server's messages, whose end is noticed also when no call waits for an answer."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return acceptable(await self._stream.__anext__())
        except StopAsyncIteration:
            self._on_end()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._stream.__aexit__(*details)
