"""Threads execute functions for callers: at most so many at a time, and none whose caller is gone."""

import asyncio
import threading
from contextvars import ContextVar

import pytest
from mnemesh_kit.sql.sqlite import Threads

_NAME: ContextVar[str] = ContextVar("name", default="")


async def test_results_errors_and_context_variables() -> None:
    threads = Threads(2, "reader")
    _NAME.set("Ada")
    assert await threads.submit(_NAME.get) == "Ada"
    with pytest.raises(ZeroDivisionError):
        await threads.submit(lambda: 1 // 0)
    await threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        await threads.submit(_NAME.get)


async def test_as_many_functions_as_threads_run_at_the_same_time() -> None:
    threads, together = Threads(3, "reader"), threading.Barrier(3)
    for _ in range(2):
        await asyncio.gather(*(threads.submit(lambda: together.wait(10)) for _ in range(3)))
    names = await asyncio.gather(*(threads.submit(lambda: threading.current_thread().name) for _ in range(20)))
    assert set(names) <= {"reader_0", "reader_1", "reader_2"}
    await threads.close()


async def test_one_caller_needs_one_thread() -> None:
    threads = Threads(3, "reader")
    assert {await threads.submit(threading.get_ident) for _ in range(20)} == {await threads.submit(threading.get_ident)}
    await threads.close()


async def test_a_function_whose_caller_is_gone_is_not_begun() -> None:
    threads, free, begun = Threads(1, "reader"), threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return free.wait(10)

    held = asyncio.create_task(threads.submit(hold))
    assert await asyncio.to_thread(begun.wait, 10)
    done: list[int] = []
    waiting = asyncio.create_task(threads.submit(lambda: done.append(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    free.set()
    assert await held
    await threads.close()
    assert done == []
