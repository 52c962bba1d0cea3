"""Periodic background tasks of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

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
