"""Background tasks of a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")
_log = structlog.get_logger("mnemesh.background")


def periodic(interval: float, fn: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
    """Returns a task for `Assembly.background` that runs `fn` every `interval` seconds, first after one interval.

    A failed run is logged, and does not stop the next one.
    """

    async def task() -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await fn()
            except Exception:
                _log.exception("periodic_task_failed", task=getattr(fn, "__qualname__", repr(fn)))

    return task


async def with_pause(work: Callable[[], Awaitable[T]]) -> T:
    """Does a piece of work, and then waits for as long as it took, so that calls have half of the time."""
    began = time.monotonic()
    result = await work()
    await asyncio.sleep(time.monotonic() - began)
    return result


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. A cancellation of the caller takes effect after the end of the work."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it
        raise
