"""The leases that this process holds: renewed in time, and let go of before they could lapse unnoticed."""

import asyncio
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
PATIENCE_SECONDS: Final = 5.0
"""A renewal that takes longer has failed."""
SAFE_SECONDS: Final = 24.0
"""So long after a renewal was asked for, its lease surely holds; whoever could not renew it since stops."""


@dataclass(slots=True)
class _Holding:
    lease: Lease
    lose: Callable[[], None]
    safe_until: float


class LeaseRenewer:
    """Keeps the leases of one owner, each with what stops its holder."""

    def __init__(self, store: LeaseStore, clock: Clock, owner: str) -> None:
        self.owner = owner
        self._store = store
        self._clock = clock
        self._held: dict[str, _Holding] = {}
        # Held between a claim and its beginning: to the store, what this process has claimed and not begun looks like
        # something that it left behind in a crash.
        self._claiming: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def claiming(self, conversation_id: str) -> asyncio.Lock:
        """Held by whoever claims anything in a conversation, until it is kept here."""
        lock = self._claiming.get(conversation_id)
        if lock is None:
            lock = self._claiming[conversation_id] = asyncio.Lock()
        return lock

    def keep(self, lease: Lease, lose: Callable[[], None]) -> None:
        """Renews a fresh lease from now on; `lose` is called where it is lost, or may be before long."""
        self._held[lease.conversation_id] = _Holding(lease, lose, self._clock.monotonic() + SAFE_SECONDS)

    def drop(self, lease: Lease) -> None:
        """Renews it no more."""
        holding = self._held.get(lease.conversation_id)
        if holding is not None and holding.lease == lease:
            del self._held[lease.conversation_id]

    def holds(self, conversation_id: str) -> bool:
        """Whether this process has the turn slot of a conversation, for a run or for anything else."""
        return conversation_id in self._held

    @property
    def leases(self) -> tuple[Lease, ...]:
        """What is held."""
        return tuple(holding.lease for holding in self._held.values())

    def lose(self, lease: Lease) -> None:
        """Stops the holder of a lease that somebody else has now."""
        holding = self._held.get(lease.conversation_id)
        if holding is not None and holding.lease == lease:
            _log.warning("a lease is lost", conversation=lease.conversation_id, epoch=lease.epoch)
            self.drop(lease)
            holding.lose()

    async def leave_lines(self) -> None:
        """Gives up the places in queues that this owner had before it was killed."""
        await self._store.leave_lines(self.owner)

    async def renew(self) -> None:
        """For ever: puts off the expiry of what is held."""
        renewed = True
        while True:
            await asyncio.sleep(RENEWAL_SECONDS if renewed else RETRY_SECONDS)
            renewed = await self.renew_once()

    async def renew_once(self) -> bool:
        """Renews every lease, and stops the holders of those that are lost or could not be renewed for too long."""
        holdings, began, renewed = tuple(self._held.values()), self._clock.monotonic(), False
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                lost = await self._store.renew([holding.lease for holding in holdings])
        except (MnemeshError, TimeoutError) as error:
            _log.warning("renewing leases failed", error=str(error))
        else:
            renewed = True
            for holding in holdings:
                holding.safe_until = began + SAFE_SECONDS
            for lease in lost:
                self.lose(lease)
        for holding in holdings:
            if holding.safe_until <= self._clock.monotonic():
                self.lose(holding.lease)
        return renewed
