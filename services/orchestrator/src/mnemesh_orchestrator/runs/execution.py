"""The execution of a claimed run: its turn, and how it ends. Every way of ending is stored."""

import asyncio
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.sql import DatabaseFull, DatabaseUnavailable
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.journal import Journals, JournalWriter, shielded
from mnemesh_orchestrator.loop.metrics import TurnMetrics
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.loop.stop_reasons import STOP_ERRORS, failure
from mnemesh_orchestrator.model.events import DurableBody, ErrorEvent, StopEvent, UsageEvent
from mnemesh_orchestrator.model.runs import RunError, RunStatus, StopReason, status_of
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.runs.input_recorder import InputRecorder
from mnemesh_orchestrator.runs.run_reports import report_end
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder
from mnemesh_orchestrator.store.base import Claim
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

    turn: Turn | None
    reason: StopReason
    error: RunError | None = None


class RunExecution:
    """Executes claimed runs."""

    def __init__(
        self,
        journals: Journals,
        turns: TurnBuilder,
        engine: Engine,
        leases: LeaseStore,
        broker: EventBroker,
        inputs: InputRecorder,
        clock: Clock,
        metrics: TurnMetrics,
        max_stalled_claims: int,
    ) -> None:
        """Creates the execution of runs.

        Args:
            journals: opens the journals of runs.
            turns: builds the turns of runs.
            engine: runs their steps.
            leases: the leases, which a compaction after a run releases.
            broker: ends the streams of runs before that compaction.
            inputs: stores the inputs that no step stored.
            clock: the clock of times and durations.
            metrics: counts ended runs.
            max_stalled_claims: the takeovers of a run without progress after which it is ended.
        """
        self._journals = journals
        self._turns = turns
        self._engine = engine
        self._leases = leases
        self._broker = broker
        self._inputs = inputs
        self._clock = clock
        self._metrics = metrics
        self._max_stalled_claims = max_stalled_claims

    async def run(self, active: ActiveRun) -> bool:
        """Runs a turn and stores how it ended. Returns whether another run of the conversation waits.

        Raises:
            LeaseLost: another process holds the run now.
            DatabaseUnavailable, DatabaseFull: the run has not ended, and can be resumed.
        """
        claim, started = active.claim, self._clock.monotonic()
        journal = self._journals.open(claim.run, claim.lease)
        if claim.stalled >= self._max_stalled_claims and not active.cancelled:
            ending = await self._stalled(claim, journal)
        else:
            ending = await self._run_turn(active, journal)
        active.ending = True
        turn, has_next = ending.turn, await shielded(self._finish(claim, ending, journal, started))
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

    async def _run_turn(self, active: ActiveRun, journal: JournalWriter) -> _Ending:
        claim, turn = active.claim, None
        try:
            if not active.cancelled:
                turn = await self._turns.build(claim, journal)
                reason = await self._engine.run(turn)
                return _Ending(turn, reason, STOP_ERRORS.get(reason))
        except asyncio.CancelledError:
            if not active.cancelled:
                raise
        except LEFT_ERRORS:
            raise
        except Exception as failed:
            if not isinstance(failed, MnemeshError):
                _log.exception("run_failed_unexpectedly")
            return _Ending(turn, *failure(failed))
        turn, error = await self._cancel_turn(claim, turn, journal)
        return _Ending(turn, StopReason.CANCELLED, error)

    async def _cancel_turn(
        self, claim: Claim, turn: Turn | None, journal: JournalWriter, *, keeps_input: bool = True
    ) -> tuple[Turn | None, RunError | None]:
        """Leaves a valid history after a cancellation. Returns the turn, and the error if that failed."""
        try:
            turn = turn or await self._turns.build(claim, journal)
            await self._engine.cancel(turn, keeps_input=keeps_input)
        except LEFT_ERRORS:
            raise
        except Exception as error:
            if not isinstance(error, MnemeshError):
                _log.exception("run_not_cancelled_cleanly")
            return turn, failure(error)[1]
        return turn, None

    async def _stalled(self, claim: Claim, journal: JournalWriter) -> _Ending:
        """Returns the end of a run that was resumed several times and made no progress.

        The history is left as after a cancellation. If that stalls too, the next takeover leaves it as it is.
        """
        _log.error("run_stalled", takeovers=claim.claims, without_progress=claim.stalled)
        turn = None
        if claim.stalled == self._max_stalled_claims:
            turn, _ = await self._cancel_turn(claim, None, journal, keeps_input=False)
        error = RunError(
            "RUN_STALLED",
            f"The run was resumed {claim.stalled} times without progress. The server's log has the reason. "
            "Retry the run once it is resolved.",
            {"takeovers": str(claim.stalled)},
        )
        return _Ending(turn, StopReason.ERROR, error)

    async def _finish(self, claim: Claim, ending: _Ending, journal: JournalWriter, started: float) -> bool:
        turn, reason, error = ending.turn, ending.reason, ending.error
        state = turn.state if turn is not None else None
        usage, step_count = (state.usage, state.step_count) if state is not None else (Usage(), 0)
        status = status_of(reason)
        is_recorded = status is RunStatus.COMPLETED or await self._inputs.record_end(claim.run, turn)
        bodies: list[DurableBody] = [ErrorEvent(error)] if error is not None else []
        bodies += [StopEvent(reason, status), UsageEvent(usage, step_count)]
        ended = replace(
            turn.context.run if turn is not None else claim.run,
            status=status,
            stop_reason=reason,
            error=error,
            input_unrecorded=not is_recorded,
            usage=usage,
            step_count=step_count,
            completed_at=self._clock.now(),
            first_token_ms=state.first_token_ms if state is not None else None,
            total_ms=round((self._clock.monotonic() - started) * 1e3),
        )
        approval = state.approval if state is not None and reason is StopReason.REQUIRES_APPROVAL else None
        corrections = state.tokens.corrections if state is not None else ()
        keeps_lease = state is not None and state.compacts_after_run
        stored, has_next = await journal.finish(ended, bodies, approval, corrections, keeps_lease=keeps_lease)
        report_end(stored, self._metrics)
        return has_next
