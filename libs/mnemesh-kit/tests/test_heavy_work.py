"""Work in threads, places and bytes that callers share."""

import asyncio
import threading

import pytest
from mnemesh_kit.errors import ResourceExhausted
from mnemesh_kit.heavy_work import INLINE_BYTES, ByteBudget, HeavyWork, Slots


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_event_loop_goes_on_while_a_function_computes() -> None:
    work, go_on = HeavyWork(), threading.Event()
    result = asyncio.create_task(work.run("a", INLINE_BYTES, go_on.wait, 30))
    await turns()
    assert not result.done()
    go_on.set()
    assert await result is True
    await work.close()


async def test_error_of_a_function_reaches_its_caller_and_frees_its_place() -> None:
    work = HeavyWork(threads=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await work.run("a", INLINE_BYTES, lambda: 1 // 0)
    await work.close()


async def test_small_input_needs_no_thread() -> None:
    work = HeavyWork()
    assert await work.run("a", 10, threading.get_ident) == threading.get_ident()
    assert await work.run("a", INLINE_BYTES, threading.get_ident) != threading.get_ident()
    await work.close()


async def test_one_caller_does_not_take_the_places_of_others() -> None:
    work, go_on = HeavyWork(threads=2, per_caller=1), threading.Event()
    first = [asyncio.create_task(work.run("a", INLINE_BYTES, go_on.wait, 30)) for _ in range(5)]
    await turns()
    assert await work.run("b", INLINE_BYTES, lambda: "done") == "done"
    go_on.set()
    assert await asyncio.gather(*first) == [True] * 5
    await work.close()


async def test_cancelled_caller_leaves_and_the_place_is_free_when_its_function_ends() -> None:
    work, go_on = HeavyWork(threads=1), threading.Event()
    running = asyncio.create_task(work.run("a", INLINE_BYTES, go_on.wait, 30))
    await turns()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    following = asyncio.create_task(work.run("a", INLINE_BYTES, lambda: "next"))
    await turns()
    assert not following.done()
    go_on.set()
    assert await following == "next"
    await work.close()


async def test_cancelled_waiting_caller_takes_no_place() -> None:
    slots = Slots(total=1, per_caller=1)
    await slots.acquire("a")
    waiting = [asyncio.create_task(slots.acquire(caller)) for caller in ("a", "b")]
    await turns()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    slots.release("a")
    async with slots.hold("b"), asyncio.timeout(10):
        pass


def test_budget_bounds_one_caller_and_all_together() -> None:
    budget = ByteBudget(total=10, per_caller=6)
    with budget.reservation("a") as take:
        take(6)
        with pytest.raises(ResourceExhausted):
            take(1)
        with budget.reservation("b") as take_more:
            take_more(4)
            with pytest.raises(ResourceExhausted):
                take_more(1)
    with budget.reservation("b") as take:
        take(6)
