"""The execution of a claimed run: its work, and how it ends. Every way of ending is stored."""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import TEMPORARY, MnemeshError
from mnemesh_kit.sql import DatabaseFull, DatabaseUnavailable

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.journal import Journals, JournalWriter, failure, shielded
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.model.child_runs import ChildRun
from mnemesh_orchestrator.model.claims import Claim, FinishedRun
from mnemesh_orchestrator.model.events import DurableBody, ErrorEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.lineage import RunOrigin
from mnemesh_orchestrator.model.runs import RunError, RunStatus, StopReason, status_of
from mnemesh_orchestrator.ports.child_runs import ChildRunsPort
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.runs.run_reports import report_end
from mnemesh_orchestrator.runs.work import Work, Works
from mnemesh_orchestrator.store.base.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

LEFT_ERRORS: Final = (LeaseLost, DatabaseUnavailable, DatabaseFull)
"""Errors that do not end a run: another process holds it, or the orchestrator's own database is unavailable or full.
The run is resumed, as after a crash."""


@dataclass(slots=True)
class ActiveRun:
    """A run that this process executes."""

    claim: Claim
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    cancelled: bool = False
    ending: bool = False
    """The end of the run is being stored; it is too late to cancel it."""
    lost: bool = False
    """Another worker holds this run, or may claim it soon."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a run ends."""

    reason: StopReason
    error: RunError | None = None


class RunExecution:
    """Executes claimed runs."""

    def __init__(
        self,
        journals: Journals,
        works: Works,
        leases: LeaseStore,
        broker: EventBroker,
        children: ChildRunsPort,
        clock: Clock,
        metrics: TurnMetrics,
        max_stalled_claims: int,
    ) -> None:
        """Creates the execution of runs.

        Args:
            journals: opens the journals of runs.
            works: what runs do.
            leases: the leases, which a compaction after a run releases.
            broker: ends the streams of runs before that compaction.
            children: the runs that runs started.
            clock: the clock of times and durations.
            metrics: counts ended runs.
            max_stalled_claims: the takeovers of a run without progress after which it is ended.
        """
        self._journals = journals
        self._works = works
        self._leases = leases
        self._broker = broker
        self._children = children
        self._clock = clock
        self._metrics = metrics
        self._max_stalled_claims = max_stalled_claims

    async def run(self, active: ActiveRun) -> tuple[str, ...]:
        """Does the work of a run and stores how it ended. Returns the conversations whose next runs can begin now.

        Raises:
            LeaseLost: another process holds the run now.
            DatabaseUnavailable, DatabaseFull: the run has not ended, and can be resumed.
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: the same, of a sleeptime run.
        """
        claim, started = active.claim, self._clock.monotonic()
        journal = self._journals.open(claim.run, claim.lease)
        work = self._works.open(claim, journal)
        if claim.stalled >= self._max_stalled_claims and not active.cancelled:
            ending = await self._stalled(claim, work)
        else:
            ending = await self._work(active, work)
        active.ending = True
        finished = await shielded(self._finish(claim, work, ending, journal, started))
        has_next = await self._compact(claim, work) if work.result.compacts_after else finished.has_next
        return (*((claim.run.conversation_id,) if has_next else ()), *finished.started)

    async def _compact(self, claim: Claim, work: Work) -> bool:
        """Compacts the window after a run whose end is stored. Later runs of the conversation wait meanwhile.

        Returns whether one waits.
        """
        self._broker.end(claim.run.id)
        try:
            await work.compact()
        except LeaseLost:
            raise
        except Exception:
            _log.exception("compaction_failed_unexpectedly")
        try:
            return await self._leases.release(claim.lease)
        except MnemeshError as error:
            _log.warning("lease_not_released", error=error.message)
            return False

    async def _work(self, active: ActiveRun, work: Work) -> _Ending:
        try:
            if not active.cancelled:
                return _Ending(*await work.run())
        except asyncio.CancelledError:
            if not active.cancelled:
                raise
        except LEFT_ERRORS:
            raise
        except Exception as failed:
            if isinstance(failed, TEMPORARY) and active.claim.run.lineage.origin is RunOrigin.SLEEPTIME:
                raise  # no client retries it, and its messages are in no other transcript
            if not isinstance(failed, MnemeshError):
                _log.exception("run_failed_unexpectedly")
            return _Ending(*failure(failed))
        if work.result.starts_runs:
            # A process that resumes the run must not continue it after the child run that is cancelled now.
            await self._leases.request_cancel(active.claim.run.organization_id, active.claim.run.id)
        return _Ending(StopReason.CANCELLED, await self._cancel(active.claim, work))

    async def _cancel_children(self, claim: Claim) -> None:
        """Cancels the runs that a cancelled run waits for."""
        try:
            await self._children.cancel(claim.run)
        except LEFT_ERRORS:
            raise
        except Exception:
            _log.exception("child_runs_not_cancelled")

    async def _cancel(self, claim: Claim, work: Work, *, keeps_input: bool = True) -> RunError | None:
        """Leaves a valid history after a cancellation. Returns the error if that failed."""
        await self._cancel_children(claim)
        try:
            await work.cancel(keeps_input=keeps_input)
        except LEFT_ERRORS:
            raise
        except Exception as error:
            if not isinstance(error, MnemeshError):
                _log.exception("run_not_cancelled_cleanly")
            return failure(error)[1]
        return None

    async def _stalled(self, claim: Claim, work: Work) -> _Ending:
        """Returns the end of a run that was resumed several times and made no progress.

        The history is left as after a cancellation. If that stalls too, the next takeover leaves it as it is.
        """
        _log.error("run_stalled", takeovers=claim.claims, without_progress=claim.stalled)
        if claim.stalled == self._max_stalled_claims:
            await self._cancel(claim, work, keeps_input=False)
        error = RunError(
            "RUN_STALLED",
            f"The run was resumed {claim.stalled} times without progress. The server's log has the reason. "
            "Retry the run once it is resolved.",
            {"takeovers": str(claim.stalled)},
        )
        return _Ending(StopReason.ERROR, error)

    async def _finish(
        self, claim: Claim, work: Work, ending: _Ending, journal: JournalWriter, started: float
    ) -> FinishedRun:
        reason, error, status = ending.reason, ending.error, status_of(ending.reason)
        is_recorded = status is RunStatus.COMPLETED or await work.record_input()
        result = work.result
        bodies: list[DurableBody] = [ErrorEvent(error)] if error is not None else []
        children: tuple[ChildRun, ...] = ()
        if claim.resumed or result.starts_runs:  # those of an earlier lease holder are not known to this one
            children = await self._journals.retry.call(lambda: self._children.children(claim.run))
        child_run_ids = tuple(child.id for child in children)
        usage = UsageEvent(result.usage, result.step_count, child_run_ids, result.context_tokens)
        bodies += [StopEvent(reason, status), usage]
        ended = replace(
            result.run,
            status=status,
            stop_reason=reason,
            error=error,
            input_unrecorded=not is_recorded,
            usage=result.usage,
            step_count=result.step_count,
            child_run_ids=child_run_ids,
            completed_at=self._clock.now(),
            first_token_ms=result.first_token_ms,
            total_ms=round((self._clock.monotonic() - started) * 1e3),
        )
        is_waiting = reason is StopReason.REQUIRES_APPROVAL
        has_completed = status is RunStatus.COMPLETED and not is_waiting
        finished = await journal.finish(
            ended,
            bodies,
            result.approval if is_waiting else None,
            result.corrections,
            sleeptime=result.sleeptime if has_completed else None,
            extraction_turns=result.extraction_turns if has_completed else None,
            keeps_lease=result.compacts_after,
        )
        report_end(finished.run, self._metrics)
        return finished
