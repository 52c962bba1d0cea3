"""Threads that execute the functions of tasks."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """A function that a thread executes, with the context variables of its caller, who waits for `future`."""

    future: asyncio.Future[Any]
    context: contextvars.Context
    fn: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, fn: Callable[[], Any]) -> "Call":
        """Returns the call of a function by the current task."""
        return cls(asyncio.get_running_loop().create_future(), contextvars.copy_context(), fn)

    def execute(self) -> None:
        """Executes the function. Called in the thread."""
        try:
            self.result = self.context.run(self.fn)
        except BaseException as error:  # the caller receives it
            self.error = error

    def deliver(self) -> None:
        """Gives the caller the result. Called on the caller's event loop."""
        if self.future.done():  # the caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def deliver(calls: Iterable[Call]) -> None:
    """Gives callers the results of calls that were executed. Called in the thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        by_loop.setdefault(call.future.get_loop(), []).append(call)
    for loop, of_loop in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, of_loop)
        except RuntimeError:  # the loop of these callers is closed, so no one waits
            continue


def _deliver_all(calls: Iterable[Call]) -> None:
    for call in calls:
        call.deliver()


class Threads:
    """Threads that execute functions, each one at a time. An executor of the standard library does more for each call.

    Example:
        >>> readers = Threads(2, "sqlite-reader")
        >>> await readers.submit(lambda: count_blocks(connection))
        3
    """

    def __init__(self, count: int, name: str) -> None:
        """Creates the threads. Each starts when all others are busy for the first time."""
        self._count = count
        self._name = name
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._waiting = 0
        self._is_closed = False

    async def submit(self, fn: Callable[[], T]) -> T:
        """Executes a function in a thread and returns its result. It is not begun if the caller is cancelled before."""
        if self._is_closed:
            raise RuntimeError("The database is closed.")
        call = Call.of(fn)
        self._waiting += 1
        if len(self._threads) < min(self._waiting, self._count):
            thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(call)
        try:
            result: T = await call.future
        finally:
            self._waiting -= 1
        return result

    async def close(self) -> None:
        """Waits for the submitted functions and ends the threads."""
        self._is_closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            if not call.future.done():
                call.execute()
                deliver((call,))
