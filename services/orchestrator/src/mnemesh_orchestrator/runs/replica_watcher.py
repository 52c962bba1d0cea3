"""What other processes on the same database did: leases taken, cancellations asked for, events stored."""

import asyncio
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.model.leases import RunHead
from mnemesh_orchestrator.runs.event_broker import EventBroker, StoredEvents
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

PAUSE_SECONDS: Final = 0.2
"""Between two looks: so late are cancellations and events of a run that another process carries out."""


class ReplicaWatcher:
    """Looks into the database for what nobody in this process can tell.

    One read at each look covers every lease that is held and every run that is followed here and carried out
    elsewhere; where there is neither, nothing is read.
    """

    def __init__(self, store: LeaseStore, keeper: LeaseRenewer, conductor: RunWorker, hub: EventBroker) -> None:
        self._store = store
        self._keeper = keeper
        self._conductor = conductor
        self._hub = hub
        self._heads: dict[str, RunHead] = {}

    async def look(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await self.look_once()
            except MnemeshError as error:
                _log.warning("looking at what other processes do failed", error=error.message)

    async def look_once(self) -> None:
        """Stops who lost a lease, cancels what is to be cancelled, and tells followers that something is stored."""
        leases = self._keeper.leases
        followed = [run_id for run_id in self._hub.followed if not self._conductor.holds(run_id)]
        self._heads = {run_id: head for run_id, head in self._heads.items() if run_id in followed}
        if not (leases or followed):
            return
        seen = await self._store.watch(leases, followed)
        for lease in seen.lost:
            self._keeper.lose(lease)
        for run_id in seen.cancelled:
            self._conductor.interrupt(run_id)
        for run_id in followed:
            self._tell(run_id, seen.heads.get(run_id))

    def _tell(self, run_id: str, head: RunHead | None) -> None:
        if self._conductor.holds(run_id):
            return  # since the look
        if head is None:
            self._hub.end(run_id)
        elif head != self._heads.get(run_id):
            self._heads[run_id] = head
            self._hub.notify(run_id, StoredEvents(head.ended))
