"""Batches of the events of a run, so that events which follow one another closely share a transaction."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from mnemesh_orchestrator.model.events import RunEvent

BATCH_SECONDS: Final = 0.02
"""The longest time for which a durable event waits for others."""


async def batched(stream: AsyncGenerator[RunEvent, None]) -> AsyncGenerator[list[RunEvent], None]:
    """Yields the events of a stream in order: durable ones in batches, a live one alone and at once.

    The stream is closed at the end. A stream that is being read cannot be cancelled without ending it, so a task reads
    it.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Task[RunEvent | None] | None = None
    waiting: list[RunEvent] = []
    due = 0.0
    try:
        while True:
            reading = reading or asyncio.ensure_future(_next(stream))
            await asyncio.wait([reading], timeout=max(0.0, due - loop.time()) if waiting else None)
            if not reading.done():
                yield waiting
                waiting = []
                continue
            event, reading = reading.result(), None
            if event is not None and event.sequence is not None:
                due = due if waiting else loop.time() + BATCH_SECONDS
                waiting.append(event)
                continue
            if waiting:
                yield waiting
                waiting = []
            if event is None:
                return
            yield [event]
    finally:
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reading
        await stream.aclose()


async def _next(stream: AsyncGenerator[RunEvent, None]) -> RunEvent | None:
    return await anext(stream, None)
