"""Server-sent events: encoding, comments while nothing happens, and the end of a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse

KEEPALIVE_SECONDS: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"
_COMMENT: Final = b": keepalive\n\n"
encode: Final = msgspec.json.Encoder().encode
"""JSON with Unicode verbatim."""


def sse(value: Any, event: str | None = None) -> bytes:
    """Returns one event."""
    head = f"event: {event}\n".encode() if event is not None else b""
    return b"%sdata: %s\n\n" % (head, encode(value))


def event_stream(chunks: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> StreamingResponse:
    """Returns a response that streams events. If the client disconnects, the generator is closed."""
    return StreamingResponse(
        _kept_alive(chunks),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers},
    )


async def _kept_alive(chunks: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
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
