"""A value that changes while someone waits for it: only the newest one is kept."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """The newest value that was not read yet."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, value: T) -> None:
        """Replaces the value."""
        self._value = value
        self._changed.set()

    def close(self) -> None:
        """Lets the reader end, once it has read the last value."""
        self._is_closed = True
        self._changed.set()

    async def next(self) -> T | None:
        """Waits for a value and returns it; None after the last one."""
        await self._changed.wait()
        value, self._value = self._value, None
        if not self._is_closed:
            self._changed.clear()
        return value
