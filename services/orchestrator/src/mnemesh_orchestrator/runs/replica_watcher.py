"""Watches the database for the work of other replicas: leases taken, cancellations requested, events stored."""

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

INTERVAL_SECONDS: Final = 0.2
"""The time between two reads: how late this process notices cancellations and events of other replicas."""


class ReplicaWatcher:
    """Reads the state that other replicas change.

    One read covers every lease of this process and every run that is followed here and executed elsewhere. Without
    any of them nothing is read.
    """

    def __init__(self, store: LeaseStore, renewer: LeaseRenewer, worker: RunWorker, broker: EventBroker) -> None:
        self._store = store
        self._renewer = renewer
        self._worker = worker
        self._broker = broker
        self._heads: dict[str, RunHead] = {}

    async def look(self) -> None:
        """Reads at intervals. Does not return."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                await self.look_once()
            except MnemeshError as error:
                _log.warning("replica_watch_failed", error=error.message)

    async def look_once(self) -> None:
        """Stops the holders of lost leases, interrupts cancelled runs, and notifies the followers of stored events."""
        leases = self._renewer.leases
        followed = [run_id for run_id in self._broker.followed if not self._worker.holds(run_id)]
        self._heads = {run_id: head for run_id, head in self._heads.items() if run_id in followed}
        if not (leases or followed):
            return
        seen = await self._store.watch(leases, followed)
        for lease in seen.lost:
            self._renewer.lose(lease)
        for run_id in seen.cancelled:
            self._worker.interrupt(run_id)
        for run_id in followed:
            self._notify(run_id, seen.heads.get(run_id))

    def _notify(self, run_id: str, head: RunHead | None) -> None:
        if self._worker.holds(run_id):
            return  # this process has claimed it since the read
        if head is None:
            self._broker.end(run_id)
        elif head != self._heads.get(run_id):
            self._heads[run_id] = head
            self._broker.notify(run_id, StoredEvents(head.ended))
