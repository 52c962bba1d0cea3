"""Locks of subjects within one process, so that two tasks never write the same point at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager


class Busy:
    """The subjects that tasks of this process are writing."""

    def __init__(self) -> None:
        self._held: dict[Hashable, asyncio.Event] = {}

    @asynccontextmanager
    async def holding(self, subjects: Iterable[Hashable]) -> AsyncIterator[None]:
        """Waits until no other task holds any of the subjects, and holds all of them during the block."""
        wanted = set(subjects)
        while released := next((self._held[subject] for subject in wanted if subject in self._held), None):
            await released.wait()
        released = asyncio.Event()
        self._held.update(dict.fromkeys(wanted, released))
        try:
            yield
        finally:
            for subject in wanted:
                del self._held[subject]
            released.set()

    async def others(self) -> None:
        """Waits until the tasks that hold subjects now have released them."""
        for released in set(self._held.values()):
            await released.wait()
