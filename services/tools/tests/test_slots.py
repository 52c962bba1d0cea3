"""The slots of executions: fair between organizations, with a bounded wait."""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import pytest
from mnemesh_testkit.timeouts import scaled
from mnemesh_tools.errors import ToolSlotsBusy
from mnemesh_tools.usecases.slots import FairSlots


async def _settled(waiting: Awaitable[object]) -> asyncio.Future[object]:
    """Starts to wait, and returns when nothing more can happen at once."""
    task = asyncio.ensure_future(waiting)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


class _Organization:
    """An organization that runs tools until it ends them."""

    def __init__(self, slots: FairSlots, name: str) -> None:
        self._slots, self._name = slots, name
        self.ends: list[asyncio.Event] = []
        self.tasks: list[asyncio.Future[object]] = []

    @property
    def running(self) -> int:
        return len(self.ends)

    async def start(self, count: int = 1) -> None:
        for _ in range(count):
            self.tasks.append(await _settled(self._run()))

    async def end_one(self) -> None:
        self.ends.pop(0).set()
        for _ in range(5):
            await asyncio.sleep(0)

    async def _run(self) -> None:
        async with self._slots.hold(self._name):
            end = asyncio.Event()
            self.ends.append(end)
            await end.wait()


async def _end_all(*organizations: _Organization) -> None:
    for organization in organizations:
        while organization.running:
            await organization.end_one()
        await asyncio.gather(*organization.tasks)


async def test_one_organization_cannot_hold_all_slots() -> None:
    slots = FairSlots(4, 3, 60)
    greedy, other = _Organization(slots, "a"), _Organization(slots, "b")
    await greedy.start(6)
    await other.start()
    assert (greedy.running, other.running) == (3, 1)
    await _end_all(other, greedy)


async def test_free_slot_is_given_to_the_organization_with_the_fewest() -> None:
    """Organizations with an equal number take turns."""
    slots = FairSlots(2, 2, 60)
    first, second, third = (_Organization(slots, name) for name in "abc")
    await first.start(5)
    await second.start(2)
    await third.start(1)
    assert (first.running, second.running, third.running) == (2, 0, 0)
    await first.end_one()
    assert (first.running, second.running, third.running) == (1, 1, 0)
    await first.end_one()
    assert (first.running, second.running, third.running) == (1, 1, 0)
    await first.end_one()
    assert (first.running, second.running, third.running) == (0, 1, 1)
    await third.end_one()
    assert (first.running, second.running, third.running) == (1, 1, 0)
    await _end_all(second, first)


async def test_wait_is_bounded_and_leaves_no_queue_entry() -> None:
    slots = FairSlots(1, 1, 0.01)
    async with slots.hold("a"):
        with pytest.raises(ToolSlotsBusy) as caught:
            await slots.hold("b").__aenter__()
        assert caught.value.metadata == {"slots": "1", "held": "0"}
        cancelled = await _settled(slots.hold("b").__aenter__())
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
    held, one, waiting, organizations = (metric.read() for metric in slots.metrics() if hasattr(metric, "read"))
    assert (held, one, waiting, organizations) == (0, 0, 0, 0)
    async with slots.hold("b"):
        pass


async def test_queue_of_an_organization_is_bounded() -> None:
    slots = FairSlots(1, 1, 60)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(slots.hold("a"))
        waiting = [await _settled(slots.hold("a").__aenter__()) for _ in range(16)]
        with pytest.raises(ToolSlotsBusy):
            await slots.hold("a").__aenter__()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_cancelled_wait_that_was_granted_returns_its_slot() -> None:
    slots = FairSlots(1, 1, 60)
    async with slots.hold("a"):
        waiting = await _settled(slots.hold("b").__aenter__())
    waiting.cancel()  # the slot was granted, but the task has not run since
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(scaled(60)), slots.hold("c"):
        pass
