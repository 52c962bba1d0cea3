"""Server-sent events: encoding, comments while nothing happens, and the end of a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

KEEPALIVE_SECONDS: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"
_COMMENT: Final = b": keepalive\n\n"
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
encode: Final = msgspec.json.Encoder().encode
"""JSON with Unicode verbatim."""


def sse(value: Any, event: str | None = None) -> bytes:
    """Returns one event."""
    head = f"event: {event}\n".encode() if event is not None else b""
    return b"%sdata: %s\n\n" % (head, encode(value))


class EventStream(StreamingResponse):
    """A response that streams events. If the client disconnects, the generator is closed.

    The head and an event that is ready with it are sent in the same iteration of the loop, so that they are one packet:
    a client that reads the head alone first would be late with the event.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={**_HEADERS, **headers})
        self._chunks = chunks

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until their end, or until the client disconnects."""
        loop, is_open = asyncio.get_running_loop(), True

        def stop(_: object) -> None:
            if is_open:
                connection.reschedule(loop.time())

        async with aclosing(self._chunks):
            try:
                async with asyncio.timeout(None) as connection:
                    end = asyncio.ensure_future(self.listen_for_disconnect(receive))
                    end.add_done_callback(stop)
                    try:
                        await self.stream_response(send)
                    finally:
                        is_open = False
                        end.cancel()
            except TimeoutError:
                if not connection.expired():
                    raise


def event_stream(chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> EventStream:
    """Returns a response that streams events, with comments while nothing happens."""
    return EventStream(_kept_alive(chunks), headers)


async def _kept_alive(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yields the chunks, and a comment whenever there was none for a while."""
    async with aclosing(chunks):
        waiting: asyncio.Task[bytes] | None = None
        try:
            while True:
                if waiting is None:
                    waiting = asyncio.ensure_future(_next(chunks))
                done, _ = await asyncio.wait((waiting,), timeout=KEEPALIVE_SECONDS)
                if not done:
                    yield _COMMENT
                    continue
                chunk, waiting = waiting.result(), None
                if not chunk:
                    return
                yield chunk
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)


async def _next(chunks: AsyncGenerator[bytes, None]) -> bytes:
    """Returns the next chunk, or nothing at the end."""
    return await anext(chunks, b"")
