"""The live events of background runs: numbered when they are published, and stored in batches for replays."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.model.events import RunEvent
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.store.base.leases import DeltaStore

_log = structlog.get_logger("mnemesh.loop")

INTERVAL_SECONDS: Final = 0.25
"""The longest time until a live event is stored."""


@dataclass(slots=True)
class _Open:
    lease: Lease
    number: int = 0
    waiting: list[tuple[int, RunEvent]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)


class DeltaLog:
    """The live events of the background runs that this process executes."""

    def __init__(self, store: DeltaStore) -> None:
        self._store = store
        self._open: dict[str, _Open] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, lease: Lease, after: int, event: RunEvent) -> RunEvent:
        """Returns the event with its position, and stores it before long.

        Args:
            lease: the lease of the run.
            after: the sequence number of the last durable event before it.
            event: the event.
        """
        log = self._open.get(lease.run_id)
        if log is None or log.lease != lease:
            log = self._open[lease.run_id] = _Open(lease)
        log.number += 1
        numbered = replace(event, position=(lease.epoch, log.number))
        log.waiting.append((after, numbered))
        if log.timer is None:
            log.timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._due, log)
        return numbered

    async def flush(self, run_id: str) -> None:
        """Stores the waiting events of a run. Durable events that follow them are stored afterwards.

        Raises:
            LeaseLost: another process holds the run now.
        """
        log = self._open.get(run_id)
        if log is not None:
            await self._store_waiting(log)

    def drop(self, run_id: str) -> None:
        """Forgets a run that this process does not execute any more."""
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
            _log.warning("live_events_not_stored", run_id=log.lease.run_id, error=error.message)

    async def _store_waiting(self, log: _Open) -> None:
        async with log.storing:
            if log.timer is not None:
                log.timer.cancel()
                log.timer = None
            taken = tuple(log.waiting)
            if taken:
                try:
                    await self._store.append(log.lease, taken)
                except MnemeshError:
                    raise
                except Exception:
                    # Live events are a convenience of followers: the durable ones have everything.
                    _log.exception("live_events_dropped", run_id=log.lease.run_id, count=len(taken))
                del log.waiting[: len(taken)]
