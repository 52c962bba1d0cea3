"""The end of tasks that run code of libraries."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_AGAIN_SECONDS: Final = 6.0
"""Longer than the SDK takes to tell a server that a call is cancelled."""


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancels a task and waits for its end; again and again, because a library may lose a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()  # nobody else waits for it
