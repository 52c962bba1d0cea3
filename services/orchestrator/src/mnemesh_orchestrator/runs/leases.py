"""The leases of conversations: their renewal, and the lock for work that is not a run, such as a reset or a fork."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import structlog
from mnemesh_kit.call_context import remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import IdSource
from mnemesh_kit.server import run_to_end
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.model.events import Lease
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.store.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

RENEWAL_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 5.0
"""A renewal that takes longer has failed."""
SAFE_SECONDS: Final = 24.0
"""How long a lease surely holds after the request for its renewal. A holder without a renewal stops then."""
_RELEASED_LEASES: Final = 1_000

POLL_SECONDS: Final = 0.2
"""The time between two requests for the lock. Each request keeps the position in the queue."""
MAX_WAIT_SECONDS: Final = 600.0
"""The longest wait for the lock."""
RESERVE_SECONDS: Final = 1.0
"""The part of the caller's time that is kept for the answer that the lock was not free; at most a tenth of it."""


@dataclass(slots=True)
class _Holding:
    lease: Lease
    on_loss: Callable[[], None]
    safe_until: float


class LeaseRenewer:
    """Renews the leases of one instance, and stops the holders of leases that are lost."""

    def __init__(self, store: LeaseStore, clock: Clock, instance_id: str) -> None:
        """Creates the renewer of an instance.

        Args:
            clock: the source of elapsed time.
            instance_id: the id of this instance, which its leases name.
        """
        self.instance_id = instance_id
        self._store = store
        self._clock = clock
        self._held: dict[str, _Holding] = {}
        self._released: OrderedDict[str, int] = OrderedDict()
        # Held from a claim until the lease is kept here. In the store, a run that this process has claimed and not yet
        # begun looks like one that the process left in a crash.
        self._claiming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def claiming(self, conversation_id: str) -> asyncio.Lock:
        """Returns the lock that protects a claim in a conversation until its lease is kept."""
        lock = self._claiming.get(conversation_id)
        if lock is None:
            lock = self._claiming[conversation_id] = asyncio.Lock()
        return lock

    def keep(self, lease: Lease, on_loss: Callable[[], None]) -> None:
        """Renews a new lease from now on. `on_loss` is called when it is lost, or could be before long."""
        self._held[lease.conversation_id] = _Holding(lease, on_loss, self._clock.monotonic() + SAFE_SECONDS)

    def drop(self, lease: Lease) -> None:
        """Stops the renewal of a lease whose holder has done its work."""
        if self._remove(lease) is None:
            return
        self._released[lease.conversation_id] = lease.epoch
        self._released.move_to_end(lease.conversation_id)
        if len(self._released) > _RELEASED_LEASES:
            self._released.popitem(last=False)

    def _remove(self, lease: Lease) -> _Holding | None:
        holding = self._held.get(lease.conversation_id)
        if holding is None or holding.lease != lease:
            return None
        self._released.pop(lease.conversation_id, None)
        return self._held.pop(lease.conversation_id)

    def released_epoch(self, conversation_id: str) -> int | None:
        """Returns the epoch of the last lease of this process in a conversation, if its holder has done its work.

        Returns None if the process holds a lease of the conversation, if it lost the last one, or if the last one is
        long ago.
        """
        return None if conversation_id in self._held else self._released.get(conversation_id)

    def holds(self, conversation_id: str) -> bool:
        """Returns whether this process holds the lease of a conversation, for a run or for other work."""
        return conversation_id in self._held

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The leases that this process holds."""
        return tuple(holding.lease for holding in self._held.values())

    def lose(self, lease: Lease) -> None:
        """Stops the holder of a lease that another process holds now."""
        if (holding := self._remove(lease)) is not None:
            _log.warning("lease_lost", conversation_id=lease.conversation_id, epoch=lease.epoch)
            holding.on_loss()

    async def leave_queues(self) -> None:
        """Removes the queue entries that this instance left in a crash."""
        await self._store.leave_queues(self.instance_id)

    async def renew(self) -> None:
        """Renews the leases at intervals. Does not return."""
        is_renewed = True
        while True:
            await asyncio.sleep(RENEWAL_SECONDS if is_renewed else RETRY_SECONDS)
            is_renewed = await self.renew_once()

    async def renew_once(self) -> bool:
        """Renews every lease. Stops the holders of leases that are lost, or that could not be renewed in time.

        Returns:
            Whether the store answered.
        """
        holdings, began, is_renewed = tuple(self._held.values()), self._clock.monotonic(), False
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                lost = await self._store.renew([holding.lease for holding in holdings])
        except (MnemeshError, TimeoutError) as error:
            _log.warning("lease_renewal_failed", error=str(error))
        else:
            is_renewed = True
            for holding in holdings:
                holding.safe_until = began + SAFE_SECONDS
            for lease in lost:
                self.lose(lease)
        for holding in holdings:
            if holding.safe_until <= self._clock.monotonic():
                self.lose(holding.lease)
        return is_renewed


class ConversationLock:
    """Grants the leases of conversations to work that is not a run, in the order of the requests of runs and work."""

    def __init__(
        self, store: LeaseStore, renewer: LeaseRenewer, start_next: Callable[[str], Awaitable[None]], ids: IdSource
    ) -> None:
        """Creates the lock of every conversation.

        Args:
            renewer: renews the leases of this process.
            start_next: starts the next run of a conversation, if one waits.
            ids: creates the ids of queue entries.
        """
        self._store = store
        self._renewer = renewer
        self._start_next = start_next
        self._ids = ids

    @asynccontextmanager
    async def take(
        self, organization_id: str, agent_id: str, conversation_id: str, on_busy: OnBusy = OnBusy.WAIT
    ) -> AsyncIterator[Lease]:
        """Holds the lease of a conversation for a block of code.

        The block begins when earlier runs and other work are done, on every replica. With REJECT, or if the deadline
        of the call comes first, it does not begin. Later runs wait until the block ends. Writes to recall that carry
        the lease's `run_id` (which names no run) and `epoch` are refused once another process has the conversation.

        Raises:
            NotFound: the agent or conversation does not exist.
            ConversationBusy: the lock was not free in time. `run_id` names a run that executes or waits.
            LeaseLost: the lease was lost, and the block was cancelled.
        """
        holder, lost = asyncio.current_task(), asyncio.Event()

        def on_loss() -> None:
            lost.set()
            if holder is not None:
                holder.cancel()

        request = _Request(organization_id, agent_id, conversation_id, self._ids.new("run"))
        try:
            lease = await self._wait(request, on_loss, on_busy)
        except BaseException as error:
            if request.is_queued or not isinstance(error, MnemeshError):
                await run_to_end(self._leave_queue(request))
            raise
        try:
            yield lease
        except asyncio.CancelledError:
            if holder is not None and lost.is_set() and holder.uncancel() == 0:
                raise LeaseLost("The turn slot was lost.", conversation_id=conversation_id) from None
            raise
        finally:
            await run_to_end(self._release(lease))

    async def _wait(self, request: "_Request", on_loss: Callable[[], None], on_busy: OnBusy) -> Lease:
        loop = asyncio.get_running_loop()
        last = loop.time() + (_max_wait() if on_busy is OnBusy.WAIT else 0)
        while (left := last - loop.time()) > 0:
            request.is_queued = True
            lease = await self._attempt(request, on_loss, waits=True)
            if lease is not None:
                return lease
            await asyncio.sleep(min(left, POLL_SECONDS))
        lease = await self._attempt(request, on_loss, waits=False)
        assert lease is not None  # noqa: S101 -- it raises instead
        return lease

    async def _attempt(self, request: "_Request", on_loss: Callable[[], None], *, waits: bool) -> Lease | None:
        async with self._renewer.claiming(request.conversation_id):
            lease = await run_to_end(
                self._store.acquire(
                    request.organization_id,
                    request.agent_id,
                    request.conversation_id,
                    request.slot_id,
                    self._renewer.instance_id,
                    reclaim=not self._renewer.holds(request.conversation_id),
                    waits=waits,
                )
            )
            if lease is not None:
                self._renewer.keep(lease, on_loss)
            return lease

    async def _leave_queue(self, request: "_Request") -> None:
        """Removes a request from the queue, so that those after it do not wait for it."""
        try:
            if await self._store.leave_queue(request.conversation_id, request.slot_id):
                await self._start_next(request.conversation_id)
        except MnemeshError as error:
            _log.warning("queue_entry_not_removed", conversation_id=request.conversation_id, error=error.message)

    async def _release(self, lease: Lease) -> None:
        self._renewer.drop(lease)
        try:
            has_next = await self._store.release(lease)
        except MnemeshError as error:
            _log.warning("lease_not_released", conversation_id=lease.conversation_id, error=error.message)
            return
        if has_next:
            await self._start_next(lease.conversation_id)


@dataclass(slots=True)
class _Request:
    """A request for the lock of a conversation."""

    organization_id: str
    agent_id: str
    conversation_id: str
    slot_id: str
    is_queued: bool = False


def _max_wait() -> float:
    left = remaining()
    return MAX_WAIT_SECONDS if left is None else min(MAX_WAIT_SECONDS, left - min(RESERVE_SECONDS, left / 10))
