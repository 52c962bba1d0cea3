"""Slots of work: how much runs at the same time, and which organization is next."""

import asyncio
import time
from collections import Counter as Multiset
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from mnemesh_kit.metrics import Counter, Gauge, Histogram, Metric

from mnemesh_tools.errors import ToolSlotsBusy

_WAITING_PER_SLOT: Final = 16


MAX_WAIT_SECONDS: Final = 20.0
"""The longest wait of an execution for others to end; then it is refused."""


class FairSlots:
    """A limited number of slots that organizations share.

    A free slot goes to the waiting organization that holds the fewest; among equals, to the one that has waited longest
    for its turn. An organization never holds more than `per_organization` slots, so that others need not wait for the
    end of its tools.
    """

    def __init__(
        self,
        slots: int,
        per_organization: int,
        max_wait_seconds: float = MAX_WAIT_SECONDS,
        work: str = "executions of tools",
    ) -> None:
        """Creates free slots.

        Args:
            slots: The number of slots.
            per_organization: The number of slots that one organization can hold.
            max_wait_seconds: The longest wait for a slot.
            work: What needs a slot, for errors.
        """
        self._work = work
        self._slots = slots
        self._per_organization = per_organization
        self._max_wait_seconds = max_wait_seconds
        self._held: Multiset[str] = Multiset()
        # In the order of their turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._wait_seconds = Histogram("mnemesh_tools_slot_wait_seconds", "Waits of executions for a slot.")
        self._refused = Counter("mnemesh_tools_slots_refused", "Executions that got no slot within the longest wait.")

    @asynccontextmanager
    async def hold(self, organization_id: str) -> AsyncIterator[None]:
        """Holds a slot for the organization until the block ends, which may be in another task.

        Raises:
            ToolSlotsBusy: None became free within the longest wait, or too many executions of the organization wait.
        """
        started = time.monotonic()
        await self._acquire(organization_id)
        self._wait_seconds.observe(time.monotonic() - started)
        try:
            yield
        finally:
            self._release(organization_id)

    def metrics(self) -> list[Metric]:
        """Returns the metrics of the slots. None has the organization as a label."""
        return [
            self._wait_seconds,
            self._refused,
            Gauge("mnemesh_tools_slots_held", "Slots that executions hold.", lambda: float(self._held.total())),
            Gauge(
                "mnemesh_tools_slots_held_by_one",
                "Slots of the organization that holds the most.",
                lambda: float(max([*self._held.values(), 0])),
            ),
            Gauge(
                "mnemesh_tools_slots_waiting",
                "Executions that wait for a slot.",
                lambda: float(sum(len(queue) for queue in [*self._waiting.values()])),
            ),
            Gauge(
                "mnemesh_tools_slots_waiting_organizations",
                "Organizations whose executions wait for a slot.",
                lambda: float(len(self._waiting)),
            ),
        ]

    async def _acquire(self, organization_id: str) -> None:
        queue = self._waiting.setdefault(organization_id, deque())
        if len(queue) >= self._slots * _WAITING_PER_SLOT:
            raise self._busy(organization_id)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._grant()
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._release(organization_id)
            else:
                self._leave(organization_id, turn)
            if isinstance(error, TimeoutError):
                raise self._busy(organization_id) from None
            raise

    def _release(self, organization_id: str) -> None:
        self._held[organization_id] -= 1
        if self._held[organization_id] == 0:
            del self._held[organization_id]
        self._grant()

    def _leave(self, organization_id: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(organization_id, deque())
        if turn in queue:
            queue.remove(turn)
        if not queue:
            self._waiting.pop(organization_id, None)

    def _grant(self) -> None:
        """Gives the free slots to those whose turn it is."""
        while self._held.total() < self._slots:
            allowed = [name for name in self._waiting if self._held[name] < self._per_organization]
            if not allowed:
                return
            organization_id = min(allowed, key=lambda name: self._held[name])
            queue = self._waiting.pop(organization_id)
            turn = queue.popleft()
            if queue:
                self._waiting[organization_id] = queue  # at the end
            if not turn.done():  # else its caller was cancelled, and has not run since
                self._held[organization_id] += 1
                turn.set_result(None)

    def _busy(self, organization_id: str) -> ToolSlotsBusy:
        self._refused.inc()
        return ToolSlotsBusy(self._slots, self._held[organization_id], self._max_wait_seconds, self._work)
