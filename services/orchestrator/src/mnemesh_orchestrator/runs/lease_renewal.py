"""The leases that this process holds: renewed in time, and given up before they can expire."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.store.base.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

RENEWAL_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 5.0
"""A renewal that takes longer has failed."""
SAFE_SECONDS: Final = 24.0
"""How long a lease surely holds after the request for its renewal. A holder without a renewal stops then."""
_RELEASED_LEASES: Final = 1_000


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
            store: the leases.
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
