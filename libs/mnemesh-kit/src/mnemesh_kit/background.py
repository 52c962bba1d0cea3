"""Work that a server does beside its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

_log = structlog.get_logger("mnemesh.background")


def periodic(interval: float, fn: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
    """A task for `Assembly.background` that runs `fn` every `interval` seconds, first after one interval.

    A failure is logged and the next turn comes all the same.
    """

    async def task() -> None:
        while True:
            await asyncio.sleep(interval)
            try:
                await fn()
            except Exception:
                _log.exception("periodic work failed", work=getattr(fn, "__qualname__", repr(fn)))

    return task
