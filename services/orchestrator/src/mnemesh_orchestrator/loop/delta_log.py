"""Live events of background runs: numbered as they are told, and stored in batches, so that they can be told again."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.store.base.leases import DeltaStore

_log = structlog.get_logger("mnemesh.loop")

PAUSE_SECONDS: Final = 0.25
"""How long a live event waits at most to be stored."""


@dataclass(slots=True)
class _Open:
    lease: Lease
    number: int = 0
    waiting: list[tuple[int, RunEvent]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)


class DeltaLog:
    """The live events of the background runs that this process carries out."""

    def __init__(self, store: DeltaStore) -> None:
        self._store = store
        self._open: dict[str, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, lease: Lease, after: int, event: RunEvent) -> RunEvent:
        """The event with its place, which is stored before long; `after` is the newest durable event before it."""
        log = self._open.get(lease.run_id)
        if log is None or log.lease != lease:
            log = self._open[lease.run_id] = _Open(lease)
        log.number += 1
        placed = replace(event, place=(lease.epoch, log.number))
        log.waiting.append((after, placed))
        if log.timer is None:
            log.timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._due, log)
        return placed

    async def flush(self, run_id: str) -> None:
        """Stores what waits; durable events that follow it are stored after it.

        Raises:
            LeaseLost: somebody else carries the run out now.
        """
        log = self._open.get(run_id)
        if log is not None:
            await self._store_waiting(log)

    async def close(self, run_id: str) -> None:
        """Stores what waits of a run that ends. Raises as `flush`."""
        await self.flush(run_id)
        self.drop(run_id)

    def drop(self, run_id: str) -> None:
        """Forgets a run that is carried out here no more."""
        log = self._open.pop(run_id, None)
        if log is not None and log.timer is not None:
            log.timer.cancel()

    def _due(self, log: _Open) -> None:
        task = asyncio.ensure_future(self._try_to_store(log))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try_to_store(self, log: _Open) -> None:
        try:
            await self._store_waiting(log)
        except MnemeshError as error:
            _log.warning("live events have to wait to be stored", run=log.lease.run_id, error=error.message)

    async def _store_waiting(self, log: _Open) -> None:
        async with log.storing:
            if log.timer is not None:
                log.timer.cancel()
                log.timer = None
            taken = tuple(log.waiting)
            if taken:
                await self._store.append(log.lease, taken)
                del log.waiting[: len(taken)]
