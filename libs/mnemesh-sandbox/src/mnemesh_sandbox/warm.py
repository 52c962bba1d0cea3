"""Sandbox processes that are started before their task is known. Each executes one task and then ends.

A process of the pool has seen no task and no organization, so who gets it makes no difference.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mnemesh_sandbox.process import SandboxProcess

IDLE_SECONDS: Final = 300.0
# A small task has ended by then, so the start of the next process does not delay its answer.
_FILL_SECONDS: Final = 0.02
_MAX_PROCESSES: Final = 8
_MAX_ENDINGS: Final = 16

Key = tuple[str, ...]
"""The path of Node, or "" for Python, and the directories of packages that a process can import."""


@dataclass(slots=True)
class PreparedProcess:
    """A process that waits for its task, with what must be released after it."""

    process: SandboxProcess
    resources: AsyncExitStack
    cgroup: Path | None
    directories: tuple[int, ...] = ()
    """The inodes of the paths of its key. A directory that was removed and installed again has another one."""

    async def close(self) -> None:
        """Awaits the end of the process, whose task has ended."""
        try:
            await self.process.close()
        finally:
            await self.resources.aclose()

    async def discard(self) -> None:
        """Ends the process."""
        try:
            await self.process.discard()
        finally:
            await self.resources.aclose()


class Endings:
    """Processes whose task has ended, until the kernel has removed their namespaces."""

    def __init__(self) -> None:
        """Creates an empty set."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, process: PreparedProcess) -> None:
        """Closes a process in the background, or before it returns if the process has ended or many others end."""
        if process.process.has_ended:
            await process.close()
            return
        task = asyncio.create_task(process.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._tasks) > _MAX_ENDINGS:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Awaits the end of all."""
        await asyncio.gather(*self._tasks)


class WarmPool:
    """Keeps some processes of the keys that were used last."""

    def __init__(self, size: int, prepare: Callable[[Key], Coroutine[Any, Any, PreparedProcess]]) -> None:
        """Creates an empty pool; the first use of a key fills it.

        Args:
            size: The number of processes of each key.
            prepare: Starts a process.
        """
        self._size = size
        self._prepare = prepare
        self._waiting: dict[Key, deque[PreparedProcess]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._fills: dict[Key, asyncio.TimerHandle] = {}
        self._closed = False
        self._filling = asyncio.Lock()

    async def take(self, key: Key) -> PreparedProcess | None:
        """Returns a process that waits, or None; then replaces it in the background."""
        waiting = self._waiting.pop(key, deque())
        self._waiting[key] = waiting  # at the end: used last
        found: PreparedProcess | None = None
        while waiting and found is None:
            candidate = waiting.popleft()
            if candidate.process.has_ended or candidate.directories != inodes(key):
                self._start(candidate.discard())
            else:
                found = candidate
        self._fill_soon(key)
        self._restart_idle_timer()
        return found

    async def close(self) -> None:
        """Ends all processes."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        for timer in self._fills.values():
            timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._empty()

    def _fill_soon(self, key: Key) -> None:
        def fill() -> None:
            del self._fills[key]
            self._start(self._fill(key))

        if not self._closed and key not in self._fills:
            self._fills[key] = asyncio.get_running_loop().call_later(_FILL_SECONDS, fill)

    async def _fill(self, key: Key) -> None:
        # One after another, because each start uses the processor and the event loop.
        async with self._filling:
            while not self._closed and key in self._waiting and len(self._waiting[key]) < self._size:
                process = await self._prepare(key)
                if self._closed or key not in self._waiting:
                    await process.discard()
                    return
                self._waiting[key].append(process)
                while sum(map(len, self._waiting.values())) > _MAX_PROCESSES:
                    oldest, found = next((name, found) for name, found in self._waiting.items() if found)
                    surplus = found.popleft()
                    if not found:
                        del self._waiting[oldest]
                    await surplus.discard()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a process that cannot be started is reported by the execution that needs one

    def _restart_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, lambda: self._start(self._empty()))

    async def _empty(self) -> None:
        processes = [process for waiting in self._waiting.values() for process in waiting]
        self._waiting.clear()
        for process in processes:
            await process.discard()


def inodes(key: Key) -> tuple[int, ...]:
    """Returns the inodes of the paths of a key; 0 for one that does not exist."""
    return tuple(Path(path).stat().st_ino if path and Path(path).exists() else 0 for path in key)
