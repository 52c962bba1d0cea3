"""Background tasks of a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
