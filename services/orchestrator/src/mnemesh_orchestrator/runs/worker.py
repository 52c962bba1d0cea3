"""The runs of this process: it starts claimed runs, records how they end, and notices what other replicas do."""

import asyncio
import fcntl
import os
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal, as_principal, set_remaining
from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import TEMPORARY, MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from structlog.contextvars import bind_contextvars

from mnemesh_orchestrator.errors import BudgetExceeded, LeaseLost
from mnemesh_orchestrator.loop.services import TurnMetrics
from mnemesh_orchestrator.loop.step_messages import DeltaLog
from mnemesh_orchestrator.model.conversations import ApprovalAnswer
from mnemesh_orchestrator.model.events import Claim, Lease, RunEvent, RunHead, StartedRun
from mnemesh_orchestrator.model.runs import Run, RunFilter
from mnemesh_orchestrator.runs.execution import ActiveRun, RunExecution, report_end
from mnemesh_orchestrator.runs.leases import LeaseRenewer
from mnemesh_orchestrator.runs.run_stream import EventBroker, StoredEvents
from mnemesh_orchestrator.runs.turn_builder import EarlyReads
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.runs import RunStore

_log = structlog.get_logger("mnemesh.runs")

RECOVERY_SECONDS: Final = 5.0
_MAX_RUNS: Final = 1_000

INTERVAL_SECONDS: Final = 0.2
"""The time between two reads: how late this process notices cancellations and events of other replicas."""


@dataclass(eq=False)
class RunWorker:
    """Executes the runs whose leases this process holds, each in its own task."""

    store: RunStore
    leases: LeaseStore
    renewer: LeaseRenewer
    broker: EventBroker
    deltas: DeltaLog
    execution: RunExecution
    metrics: TurnMetrics
    early: EarlyReads
    _active: dict[str, ActiveRun] = field(init=False, default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    _stopping: bool = field(init=False, default=False)

    async def start(
        self,
        key: RequestKey | None,
        run: Run,
        *,
        reject_busy: bool,
        answer: ApprovalAnswer | None = None,
    ) -> StartedRun:
        """Stores a run, and starts it if its conversation is idle. Raises the errors of `RunStore.start`.

        The reads of its turn begin before it is stored, if they have not been made, which ends it earlier.
        """
        async with self.renewer.claiming(run.conversation_id):
            self.early.begin(run)
            try:
                started = await self.store.start(
                    key, run, self.renewer.instance_id, reject_busy=reject_busy, answer=answer
                )
            except BaseException as error:
                self.early.discard(run.id)
                if isinstance(error, BudgetExceeded):
                    self.metrics.budget_exceeded(error.metadata)
                raise
            if started.claim is not None:
                self._start_task(started.claim, copy_context())
            else:
                self.early.discard(run.id)
            if (resumes := started.run.resumes) is not None and (asking := resumes.asked.message.run_id) is not None:
                self.broker.notify(asking, StoredEvents(ended=True))  # what waits for it follows the answer now
        if started.frees_first:
            await self.start_next(run.conversation_id)
        return started

    def _start_task(self, claim: Claim, context: Context) -> None:
        """Starts the task of a claimed run. The task is independent of the caller and of the caller's deadline."""
        if self._stopping:
            self.early.discard(claim.run.id)
            self.broker.end(claim.run.id)  # the next process of this instance resumes the run
            return
        context.run(set_remaining, None)
        active = ActiveRun(claim, cancelled=claim.cancelled)
        if claim.resumed:
            self.metrics.takeovers.inc()
        self._active[claim.run.id] = active
        self.renewer.keep(claim.lease, lambda: self._lose(active))
        loop = asyncio.get_running_loop()
        active.task = loop.create_task(self._run(active), name=claim.run.id, context=context)
        self._tasks.add(active.task)
        active.task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step does not run its own `finally`.
        active.task.add_done_callback(lambda _: self._release(active))

    def _lose(self, active: ActiveRun) -> None:
        active.lost = True
        if active.task is not None:
            active.task.cancel()

    def _release(self, active: ActiveRun) -> None:
        """Removes a run from this process. The followers of a run that was lost read the rest from the store."""
        run_id = active.claim.run.id
        if self._active.get(run_id) is not active:
            return
        del self._active[run_id]
        self.renewer.drop(active.claim.lease)
        self.deltas.drop(run_id)
        self.early.discard(run_id)
        if not active.lost:
            self.broker.end(run_id)

    def end_unbegun(self, run: Run, events: Sequence[RunEvent]) -> None:
        """Publishes and reports the end of a run that ended without having begun."""
        self.broker.publish(events)
        report_end(run, self.metrics)

    @property
    def active_runs(self) -> int:
        """The number of runs that this process executes."""
        return len(self._active)

    def holds(self, run_id: str) -> bool:
        """Returns whether this process executes the run."""
        return run_id in self._active

    async def cancel(self, run: Run) -> bool:
        """Cancels a run that this process executes, and waits until its end is stored.

        A run that no process executes, for example after a crash, is resumed here and then cancelled.

        Returns:
            Whether this process executed the run.
        """
        if run.id not in self._active:
            await self.claim_and_run(run.conversation_id)
        active = self._active.get(run.id)
        if active is None or active.task is None:
            return False
        self.interrupt(run.id)
        await asyncio.wait([active.task])
        return True

    def interrupt(self, run_id: str) -> None:
        """Cancels a run that this process executes, without waiting. A run whose end is being stored is not changed."""
        active = self._active.get(run_id)
        if active is None or active.task is None or active.cancelled or active.ending:
            return
        active.cancelled = True
        if active.has_begun:
            active.task.cancel()

    async def wait_for_end(self, run_id: str) -> None:
        """Waits until this process does not execute the run any more."""
        active = self._active.get(run_id)
        if active is not None and active.task is not None:
            await asyncio.wait([active.task])

    async def stop_runs_of(self, organization_id: str, agent_id: str) -> tuple[str, ...]:
        """Stops the runs of an agent that is being deleted and whose leases are revoked. Returns their ids."""
        tasks = []
        for active in list(self._active.values()):
            if active.claim.run.agent_id == agent_id and active.task is not None:
                active.task.cancel()
                tasks.append(active.task)
        if tasks:
            await asyncio.wait(tasks)
        filter_ = RunFilter(agent_ids=(agent_id,), active=True)
        waiting = await self.store.list(organization_id, filter_, PageQuery(_MAX_RUNS, ascending=True))
        unfinished = tuple(run.id for run in waiting.items)
        self.end_streams(unfinished)
        return unfinished

    def end_streams(self, run_ids: Sequence[str]) -> None:
        """Ends the streams of runs that were deleted."""
        for run_id in run_ids:
            self.broker.end(run_id)

    async def claim_and_run(self, conversation_id: str) -> None:
        """Claims and starts the next run of a conversation, if one can be claimed."""
        async with self.renewer.claiming(conversation_id):
            if self._stopping or self.renewer.holds(conversation_id):
                return
            claim = await self.store.claim_next(conversation_id, self.renewer.instance_id)
            if claim is not None:
                self._start_task(claim, Context())

    async def recover(self, interval_seconds: float = RECOVERY_SECONDS) -> None:
        """Resumes runs that no process holds, such as those of this instance before a crash. Does not return."""
        while True:
            try:
                for conversation_id in await self.leases.claimable(self.renewer.instance_id):
                    await self.start_next(conversation_id)
            except MnemeshError as error:
                _log.warning("recovery_failed", error=error.message)
            await asyncio.sleep(interval_seconds)

    async def stop(self) -> None:
        """Interrupts every run and releases its lease. Any process can resume the runs at once."""
        self._stopping = True
        tasks, leases = list(self._tasks), [active.claim.lease for active in self._active.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for lease in leases:
            try:
                await self.leases.release(lease)
            except MnemeshError as error:
                _log.warning("lease_not_released", conversation_id=lease.conversation_id, error=error.message)

    async def _run(self, active: ActiveRun) -> None:
        active.has_begun = True
        run = active.claim.run
        # Every log line of this task names the run.
        bind_contextvars(run_id=run.id, agent_id=run.agent_id, conversation_id=run.conversation_id)
        following: tuple[str, ...] = ()
        try:
            with as_principal(Principal(run.organization_id, run.subject_id)):
                following = await self.execution.run(active)
        except asyncio.CancelledError:
            _log.info("run_interrupted")
        except Exception as error:
            # This process resumes the run from its journal, or another does once the lease has expired.
            active.lost = True
            await self._log_interruption(active.claim.lease, error)
        finally:
            self._release(active)
        for conversation_id in following:
            await self.start_next(conversation_id)
        if run.pool is not None:
            await self.fill_places(run.organization_id)

    async def fill_places(self, organization_id: str) -> None:
        """Starts the runs for which the pools of an organization have a place, oldest first.

        If that fails, `recover` starts them a little later.
        """
        try:
            for conversation_id in await self.leases.startable(organization_id):
                await self.start_next(conversation_id)
        except MnemeshError as error:
            _log.warning("places_not_filled", organization_id=organization_id, error=error.message)
        except Exception:
            _log.exception("places_not_filled", organization_id=organization_id)

    async def _log_interruption(self, lease: Lease, error: Exception) -> None:
        """Logs why this process does not continue a run that has not ended."""
        if isinstance(error, TEMPORARY):
            _log.warning("run_suspended", error=error.message)
            return
        if not isinstance(error, LeaseLost):
            _log.exception("run_not_recorded", error=str(error))
            return
        try:
            holder = await self.leases.holder(lease.conversation_id)
        except MnemeshError:
            holder = None
        if holder is not None and holder.instance_id != lease.instance_id:
            _log.warning("run_taken_over", epoch=lease.epoch, by=holder.instance_id, holder_epoch=holder.epoch)
        else:
            _log.warning("lease_revoked", epoch=lease.epoch, error=error.message)

    async def start_next(self, conversation_id: str) -> None:
        """Starts the next run of a conversation. If that fails, `recover` starts it a little later."""
        try:
            await self.claim_and_run(conversation_id)
        except MnemeshError as error:
            _log.warning("next_run_not_started", conversation_id=conversation_id, error=error.message)
        except Exception:
            # A row that cannot be read must not stop the recovery of other conversations.
            _log.exception("next_run_not_started", conversation_id=conversation_id)


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


class Instance:
    """The id of an instance. One process at a time uses it."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        """Reads the id from a file, or creates it.

        If another process uses the id, this process gets a temporary one, because two processes with one data
        directory must not take each other's runs for their own.

        Args:
            path: the file.
            alone: this process must be the only one on its database.

        Raises:
            StartupError: another process uses the id, and this one must be `alone`.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            self._file = -1
            if alone:
                raise StartupError(
                    f"Another orchestrator works in {path.parent}; give this one a directory of its own with "
                    "MNEMESH_DATA_DIR, or a PostgreSQL database to both."
                ) from error
            self.id = new_id("instance")
            return
        self.id = os.read(self._file, 200).decode().strip()
        if not self.id:
            self.id = new_id("instance")
            os.write(self._file, self.id.encode())

    async def close(self) -> None:
        """Releases the id for the next process."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
