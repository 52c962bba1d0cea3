"""Waits for what a test has begun."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)
