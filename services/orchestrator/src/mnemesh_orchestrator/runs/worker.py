"""The runs of this process: starts claimed runs, records how they end, and resumes interrupted ones."""

import asyncio
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.deadline import set_remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.principal import Principal, as_principal
from mnemesh_types.usage import Usage
from structlog.contextvars import bind_contextvars

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.delta_log import DeltaLog
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.journal import Journals, JournalWriter, shielded
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.loop.stop_reasons import STOP_ERRORS, failure
from mnemesh_orchestrator.model.approvals import ApprovalAnswer
from mnemesh_orchestrator.model.events import DurableBody, ErrorEvent, RunEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.runs import Run, RunError, StopReason, status_of
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.runs.run_reports import report_end
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.base import Claim, RunFilter, RunStore, StartedRun
from mnemesh_orchestrator.store.base.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

RECOVERY_SECONDS: Final = 5.0
_MAX_RUNS: Final = 1_000


@dataclass(slots=True)
class _Active:
    """A run that this process executes."""

    claim: Claim
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    cancelled: bool = False
    ending: bool = False
    """The end of the run is being stored; it is too late to cancel it."""
    lost: bool = False
    """Another worker holds this run, or may claim it soon."""


class RunWorker:
    """Executes the runs whose leases this process holds, each in its own task."""

    def __init__(
        self,
        store: RunStore,
        leases: LeaseStore,
        renewer: LeaseRenewer,
        broker: EventBroker,
        deltas: DeltaLog,
        journals: Journals,
        engine: Engine,
        turns: TurnBuilder,
        clock: Clock,
        metrics: TurnMetrics,
    ) -> None:
        self._store = store
        self._leases = leases
        self._renewer = renewer
        self._broker = broker
        self._deltas = deltas
        self._journals = journals
        self._engine = engine
        self._turns = turns
        self._clock = clock
        self._metrics = metrics
        self._active: dict[str, _Active] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(
        self, key: RequestKey | None, run: Run, *, reject_busy: bool, answer: ApprovalAnswer | None = None
    ) -> StartedRun:
        """Stores a run, and starts it if its conversation is idle. Raises the errors of `RunStore.start`."""
        async with self._renewer.claiming(run.conversation_id):
            started = await self._store.start(
                key, run, self._renewer.instance_id, reject_busy=reject_busy, answer=answer
            )
            if started.claim is not None:
                self._start_task(started.claim, copy_context())
            return started

    def _start_task(self, claim: Claim, context: Context) -> None:
        """Starts the task of a claimed run. The task is independent of the caller and of the caller's deadline."""
        if self._stopping:
            self._broker.end(claim.run.id)  # the next process of this instance resumes the run
            return
        context.run(set_remaining, None)
        active = _Active(claim, cancelled=claim.cancelled)
        if claim.resumed:
            self._metrics.takeovers.inc()
        self._active[claim.run.id] = active
        self._renewer.keep(claim.lease, lambda: self._lose(active))
        loop = asyncio.get_running_loop()
        active.task = loop.create_task(self._run(active), name=claim.run.id, context=context)
        self._tasks.add(active.task)
        active.task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step does not run its own `finally`.
        active.task.add_done_callback(lambda _: self._release(active))

    def _lose(self, active: _Active) -> None:
        active.lost = True
        if active.task is not None:
            active.task.cancel()

    def _release(self, active: _Active) -> None:
        """Removes a run from this process. The followers of a run that was lost read the rest from the store."""
        run_id = active.claim.run.id
        if self._active.get(run_id) is not active:
            return
        del self._active[run_id]
        self._renewer.drop(active.claim.lease)
        self._deltas.drop(run_id)
        if not active.lost:
            self._broker.end(run_id)

    def end_unbegun(self, run: Run, events: Sequence[RunEvent]) -> None:
        """Publishes and reports the end of a run that ended without having begun."""
        self._broker.publish(events)
        report_end(run, self._metrics)

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

    async def ended(self, run_id: str) -> None:
        """Waits until this process does not execute the run any more."""
        active = self._active.get(run_id)
        if active is not None and active.task is not None:
            await asyncio.wait([active.task])

    async def stop_runs_of(self, organization_id: str, agent_id: str) -> tuple[str, ...]:
        """Stops the runs of an agent that is being deleted and whose leases are revoked. Returns their ids."""
        tasks = []
        for active in list(self._active.values()):
            if active.claim.agent.id == agent_id and active.task is not None:
                active.task.cancel()
                tasks.append(active.task)
        if tasks:
            await asyncio.wait(tasks)
        filter_ = RunFilter(agent_ids=(agent_id,), active=True)
        waiting = await self._store.list(organization_id, filter_, PageQuery(_MAX_RUNS, ascending=True))
        unfinished = tuple(run.id for run in waiting.items)
        self.end_streams(unfinished)
        return unfinished

    def end_streams(self, run_ids: Sequence[str]) -> None:
        """Ends the streams of runs that were deleted."""
        for run_id in run_ids:
            self._broker.end(run_id)

    async def claim_and_run(self, conversation_id: str) -> None:
        """Claims and starts the next run of a conversation, if one can be claimed."""
        async with self._renewer.claiming(conversation_id):
            if self._stopping or self._renewer.holds(conversation_id):
                return
            claim = await self._store.claim_next(conversation_id, self._renewer.instance_id)
            if claim is not None:
                self._start_task(claim, Context())

    async def recover(self, interval_seconds: float = RECOVERY_SECONDS) -> None:
        """Resumes runs that no process holds, such as those of this instance before a crash. Does not return."""
        while True:
            try:
                for conversation_id in await self._leases.claimable(self._renewer.instance_id):
                    await self.claim_and_run(conversation_id)
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
                await self._leases.release(lease)
            except MnemeshError as error:
                _log.warning("lease_not_released", conversation_id=lease.conversation_id, error=error.message)

    async def _run(self, active: _Active) -> None:
        active.has_begun = True
        run = active.claim.run
        # Every log line of this task names the run.
        bind_contextvars(run_id=run.id, agent_id=run.agent_id, conversation_id=run.conversation_id)
        has_next = False
        try:
            with as_principal(Principal(run.organization_id, run.subject_id)):
                has_next = await self._run_and_finish(active)
        except LeaseLost:
            active.lost = True
            _log.warning("run_taken_over")
        except asyncio.CancelledError:
            _log.info("run_interrupted")
        except Exception as error:
            # This process resumes the run from its journal, or another does once the lease has expired.
            active.lost = True
            _log.exception("run_not_recorded", error=str(error))
        finally:
            self._release(active)
        if has_next:
            await self.start_next(run.conversation_id)

    async def start_next(self, conversation_id: str) -> None:
        """Starts the next run of a conversation. If that fails, `recover` starts it a little later."""
        try:
            await self.claim_and_run(conversation_id)
        except MnemeshError as error:
            _log.warning("next_run_not_started", conversation_id=conversation_id, error=error.message)

    async def _run_and_finish(self, active: _Active) -> bool:
        """Runs a turn and stores how it ended. Returns whether another run of the conversation waits."""
        claim, started, turn = active.claim, self._clock.monotonic(), None
        journal = self._journals.open(claim.run, claim.lease)
        reason, error, is_cancelled = StopReason.CANCELLED, None, active.cancelled
        try:
            if not is_cancelled:
                turn = await self._turns.build(claim, journal)
                reason = await self._engine.run(turn)
                error = STOP_ERRORS.get(reason)
        except asyncio.CancelledError:
            if not active.cancelled:
                raise
            is_cancelled = True
        except LeaseLost:
            raise
        except Exception as failed:
            if not isinstance(failed, MnemeshError):
                _log.exception("run_failed_unexpectedly")
            reason, error = failure(failed)
        if is_cancelled:
            turn, error = await self._cancel_turn(claim, turn, journal)
        active.ending = True
        has_next = await shielded(self._finish(claim, turn, journal, reason, error, started))
        return await self._compact(claim, turn) if turn is not None and turn.state.compacts_after_run else has_next

    async def _compact(self, claim: Claim, turn: Turn) -> bool:
        """Compacts the window after a run whose end is stored. Later runs of the conversation wait meanwhile.

        Returns whether one waits.
        """
        self._broker.end(claim.run.id)
        try:
            await self._engine.compact_after_run(turn)
        except LeaseLost:
            raise
        except Exception:
            _log.exception("compaction_failed_unexpectedly")
        try:
            return await self._leases.release(claim.lease)
        except MnemeshError as error:
            _log.warning("lease_not_released", error=error.message)
            return False

    async def _cancel_turn(
        self, claim: Claim, turn: Turn | None, journal: JournalWriter
    ) -> tuple[Turn | None, RunError | None]:
        """Leaves a valid history after a cancellation. Returns the turn, and the error if that failed."""
        try:
            if turn is None and (claim.resumed or claim.run.resumes is not None):
                turn = await self._turns.build(claim, journal)
            if turn is not None:
                await self._engine.cancel(turn)
        except LeaseLost:
            raise
        except MnemeshError as error:
            return turn, failure(error)[1]
        return turn, None

    async def _finish(
        self,
        claim: Claim,
        turn: Turn | None,
        journal: JournalWriter,
        reason: StopReason,
        error: RunError | None,
        started: float,
    ) -> bool:
        state = turn.state if turn is not None else None
        usage, step_count = (state.usage, state.step_count) if state is not None else (Usage(), 0)
        status = status_of(reason)
        bodies: list[DurableBody] = [ErrorEvent(error)] if error is not None else []
        bodies += [StopEvent(reason, status), UsageEvent(usage, step_count)]
        ended = replace(
            turn.context.run if turn is not None else claim.run,
            status=status,
            stop_reason=reason,
            error=error,
            usage=usage,
            step_count=step_count,
            completed_at=self._clock.now(),
            first_token_ms=state.first_token_ms if state is not None else None,
            total_ms=round((self._clock.monotonic() - started) * 1e3),
        )
        approval = state.approval if state is not None and reason is StopReason.REQUIRES_APPROVAL else None
        corrections = state.tokens.corrections if state is not None else ()
        keeps_lease = state is not None and state.compacts_after_run
        has_next = await journal.finish(ended, bodies, approval, corrections, keeps_lease=keeps_lease)
        report_end(ended, self._metrics)
        return has_next
