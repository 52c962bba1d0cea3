"""Server-sent events: encoding, comments while nothing happens, and the end of a client."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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
    head = f"event: {event}\n".encode() if event is not None else b""
    return b"%sdata: %s\n\n" % (head, encode(value))


class Idle(NamedTuple):
    """The chunk that a stream sends after a time without events."""

    seconds: float
    """The time without events after which the stream sends the chunk. It sends the chunk again after each such time."""
    chunk: Callable[[], bytes]


class EventStream(StreamingResponse):
    """A response that streams events. If the client disconnects, the generator is closed.

    The head and an event that is ready with it are sent in the same iteration of the loop, so that they are one packet:
    a client that reads the head alone first would be late with the event.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] = MappingProxyType({}),
        idle: Idle | None = None,
    ) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers={**_HEADERS, **headers})
        self._chunks = chunks
        self._idle = idle

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

    async def stream_response(self, send: Send) -> None:
        """Sends the head, the events, and what is sent while there are none."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writer = _Writer(send, self._idle)
        try:
            async for chunk in self._chunks:
                await writer.write(chunk)
        finally:
            await writer.close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Writer:
    """Sends the chunks of a stream, and another one after each time without any.

    One timer watches the stream. A timeout for each event would cost a task and a timer per event.
    """

    def __init__(self, send: Send, idle: Idle | None) -> None:
        self._send = send
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._waits_since: float | None = self._loop.time()
        """None while a chunk is sent, which takes long if the client reads slowly."""
        self._timer = self._loop.call_later(idle.seconds, self._watch, idle) if idle is not None else None
        self._filler: asyncio.Task[None] | None = None

    async def write(self, chunk: bytes) -> None:
        """Sends a chunk."""
        self._waits_since = None
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self._waits_since = self._loop.time()

    async def close(self) -> None:
        """Ends the watch."""
        if self._timer is not None:
            self._timer.cancel()
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.wait((self._filler,))

    def _watch(self, idle: Idle) -> None:
        now = self._loop.time()
        since = now if self._waits_since is None else self._waits_since
        if now >= since + idle.seconds:
            since, self._filler = now, self._loop.create_task(self.write(idle.chunk()))
        self._timer = self._loop.call_at(since + idle.seconds, self._watch, idle)


def event_stream(chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> EventStream:
    """Returns a response that streams events, with comments while nothing happens."""
    return EventStream(chunks, headers, Idle(KEEPALIVE_SECONDS, lambda: _COMMENT))
