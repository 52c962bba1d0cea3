"""Work whose time or memory grows with a request: off the event loop, and bounded per caller and in sum.

A service creates one `HeavyWork` and one `ByteBudget`. A caller is what shares a bound: an organization.
"""

import asyncio
import ctypes
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar

from mnemesh_kit.errors import ResourceExhausted

P = ParamSpec("P")
T = TypeVar("T")
INLINE_BYTES: Final = 32 * 1024
"""Work on fewer bytes is done on the event loop: it takes a few milliseconds, and a thread adds its own."""
_LARGE_BYTES: Final = 1 << 20
_TRIM_SECONDS: Final = 1.0


class Slots:
    """Places that callers share fairly: each waits for one of its own first, then for one of all.

    Args:
        total: how many may be taken at the same time.
        per_caller: how many of them by one caller.
    """

    def __init__(self, total: int, per_caller: int) -> None:
        self._all = asyncio.Semaphore(total)
        self._per_caller = per_caller
        self._own: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    async def acquire(self, caller: str) -> None:
        """Waits for a place and takes it. Callers are served in the order in which they came."""
        own = self._own.setdefault(caller, asyncio.Semaphore(self._per_caller))
        self._users[caller] += 1
        try:
            await own.acquire()
        except BaseException:
            self._leave(caller)
            raise
        try:
            await self._all.acquire()
        except BaseException:
            own.release()
            self._leave(caller)
            raise

    def release(self, caller: str) -> None:
        """Gives a place back."""
        self._all.release()
        self._own[caller].release()
        self._leave(caller)

    @asynccontextmanager
    async def hold(self, caller: str) -> AsyncIterator[None]:
        """Holds a place meanwhile."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release(caller)

    def _leave(self, caller: str) -> None:
        self._users[caller] -= 1
        if not self._users[caller]:
            del self._users[caller], self._own[caller]


class HeavyWork:
    """Runs functions that compute in threads.

    Python runs one thread at a time and changes to another one within milliseconds: the event loop goes on, more
    slowly. A function must therefore not spend long in a single call of C code: its input is bounded before.

    Args:
        threads: how many functions run at the same time.
        per_caller: how many of them for one caller.
    """

    def __init__(self, threads: int = 2, per_caller: int = 1) -> None:
        self._slots = Slots(threads, per_caller)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="heavy-work")

    async def run(self, caller: str, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of a function, which runs in a thread if its input is not small.

        A cancelled caller leaves at once; the function ends in its own time, and keeps its place until then.

        Args:
            caller: whose work it is.
            size: the bytes of its input.
            function: what runs.
            args: its arguments.
            kwargs: its arguments by name.
        """
        if size < INLINE_BYTES:
            return function(*args, **kwargs)
        await self._slots.acquire(caller)
        loop = asyncio.get_running_loop()

        def leave(_: Future[T]) -> None:
            # The loop may have ended before the function.
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._slots.release, caller)

        job = self._pool.submit(function, *args, **kwargs)
        job.add_done_callback(leave)
        return await asyncio.wrap_future(job)

    async def close(self) -> None:
        """Starts no more work. What runs ends in its own time."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ByteBudget:
    """Bounds the bytes of the requests that are held in memory at the same time.

    A second after a large request the process returns to the system what it no longer uses.

    Args:
        total: the most bytes of all callers.
        per_caller: the most bytes of one.
    """

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._held: Counter[str] = Counter()
        self._sum = 0
        self._trimming: asyncio.Task[None] | None = None

    @contextmanager
    def reservation(self, caller: str) -> Iterator[Callable[[int], None]]:
        """Yields a function that takes bytes of the budget, which are given back at the end.

        The function raises ResourceExhausted if the budget does not have as many. Waiting instead could wait for
        requests that wait themselves.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._held[caller] + size > self._per_caller or self._sum + size > self._total:
                raise ResourceExhausted(
                    "Too many large requests are open. Try again when others have been answered.",
                    limit=str(self._per_caller),
                )
            taken += size
            self._held[caller] += size
            self._sum += size

        try:
            yield take
        finally:
            self._sum -= taken
            self._held[caller] -= taken
            if not self._held[caller]:
                del self._held[caller]
            if taken >= _LARGE_BYTES and (self._trimming is None or self._trimming.done()):
                self._trimming = asyncio.create_task(self._trim())

    async def _trim(self) -> None:
        await asyncio.sleep(_TRIM_SECONDS)
        await return_memory()


async def return_memory() -> None:
    """Returns memory that is not used to the system. The allocator of glibc keeps what lies below used memory."""
    trim = _trim()
    if trim is not None:
        await asyncio.to_thread(trim, 0)


@cache
def _trim() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
