"""The execution of a claimed run: its work, and how it ends. Every way of ending is stored."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import structlog
from mnemesh_kit.errors import TEMPORARY, MnemeshError
from mnemesh_kit.server import run_to_end
from mnemesh_kit.sql import DatabaseFull, DatabaseUnavailable
from mnemesh_kit.time import Clock
from mnemesh_types.agents import RunError
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.builtin.call import ChildRunsPort
from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.llm.spans import agent_span
from mnemesh_orchestrator.loop.compaction import TurnCompaction
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.rules import STOP_ERRORS, failure
from mnemesh_orchestrator.loop.services import RESTART_SECONDS, TurnMetrics
from mnemesh_orchestrator.loop.state import Journals, JournalWriter, Turn
from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.conversations import Approval
from mnemesh_orchestrator.model.events import (
    Claim,
    DurableBody,
    ErrorEvent,
    FinishedRun,
    GroupClaim,
    RunEnd,
    StopEvent,
    TurnClaim,
    UsageEvent,
)
from mnemesh_orchestrator.model.groups import SleeptimeTurn
from mnemesh_orchestrator.model.runs import ChildRun, Run, RunOrigin, RunStatus, StopReason, status_of
from mnemesh_orchestrator.runs.run_stream import EventBroker
from mnemesh_orchestrator.runs.transcript_inputs import TranscriptInputs
from mnemesh_orchestrator.runs.turn_builder import InputRecorder, TurnBuilder
from mnemesh_orchestrator.store.leases import LeaseStore

_log = structlog.get_logger("mnemesh.runs")

LEFT_ERRORS: Final = (LeaseLost, DatabaseUnavailable, DatabaseFull)
"""Errors that do not end a run: another process holds it, or the orchestrator's own database is unavailable or full.
The run is resumed, as after a crash."""


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The result of a run so far."""

    run: Run
    usage: Usage = Usage()
    step_count: int = 0
    context_tokens: int | None = None
    first_token_ms: int | None = None
    starts_runs: bool = False
    """The run may have started other runs."""
    approval: Approval | None = None
    """The approval that the run stops for."""
    corrections: Sequence[Correction] = ()
    compacts_after: bool = False
    """The window is to be compacted once the end of the run is stored."""
    sleeptime: SleeptimeTurn | None = None
    """The turn, if the agent has partners. It counts if it completed."""
    extraction_turns: int | None = None
    """The number of completed turns after which the agent's facts are extracted; None if turns do not count."""


class Work(Protocol):
    """The work of a claimed run."""

    async def run(self) -> tuple[StopReason, RunError | None]:
        """Does the work. Returns why it stopped, and the error of a stop that fails without an exception."""
        ...

    async def cancel(self, *, keeps_input: bool) -> None:
        """Leaves a valid history after `run` was cancelled, or instead of it.

        With `keeps_input`, the window shows the input of a turn that committed no step.
        """
        ...

    async def record_input(self) -> bool:
        """Stores the input of work that did not complete, if no step has. Returns False if it is to be stored later."""
        ...

    async def compact(self) -> None:
        """Compacts the window after the end of the run."""
        ...

    @property
    def result(self) -> WorkResult:
        """The result so far."""
        ...


class TurnWork:
    """The turn of an agent. Implements Work."""

    def __init__(
        self,
        turns: TurnBuilder,
        engine: Engine,
        compaction: TurnCompaction,
        inputs: InputRecorder,
        claim: TurnClaim,
        journal: JournalWriter,
    ) -> None:
        self._turns = turns
        self._engine = engine
        self._compaction = compaction
        self._inputs = inputs
        self._claim = claim
        self._journal = journal
        self._turn: Turn | None = None

    async def run(self) -> tuple[StopReason, RunError | None]:
        self._turn = await self._turns.build(self._claim, self._journal)
        with agent_span(self._turn.context.agent, self._claim.run):
            reason = await self._engine.run(self._turn)
        return reason, STOP_ERRORS.get(reason)

    async def cancel(self, *, keeps_input: bool) -> None:
        if self._turn is None:
            # A run that has done nothing is cancelled soon, also without the services that its turn would need.
            seconds = None if self._claim.resumed or self._claim.run.resumes is not None else RESTART_SECONDS
            self._turn = await self._turns.build(self._claim, self._journal, seconds)
        await self._engine.cancel(self._turn, keeps_input=keeps_input)

    async def record_input(self) -> bool:
        return await self._inputs.record_end(self._claim.run, self._turn)

    async def compact(self) -> None:
        if self._turn is not None:
            await self._compaction.after_run(self._turn)

    @property
    def result(self) -> WorkResult:
        if self._turn is None:
            return WorkResult(self._claim.run)
        state = self._turn.state
        return WorkResult(
            run=self._turn.context.run,
            usage=state.usage,
            step_count=state.step_count,
            context_tokens=state.context_tokens,
            first_token_ms=state.first_token_ms,
            starts_runs=state.starts_runs,
            approval=state.approval,
            corrections=state.tokens.corrections,
            compacts_after=state.compacts_after_run,
            sleeptime=self._sleeptime(self._turn),
            extraction_turns=_extraction_turns(self._turn),
        )

    @staticmethod
    def _sleeptime(turn: Turn) -> SleeptimeTurn | None:
        agent, messages = turn.context.agent, turn.state.window.messages[1:]
        if not agent.enable_sleeptime:
            return None
        return SleeptimeTurn(agent.id, messages, is_cut=turn.context.spec.buffer is not None)


def _extraction_turns(turn: Turn) -> int | None:
    settings = turn.context.agent.memory_extraction
    return None if settings is None else settings.turns


class SleeptimeWork:
    """The turn of a partner whose transcript is not made yet. Implements Work."""

    def __init__(
        self,
        transcripts: TranscriptInputs,
        open_turn: Callable[[TurnClaim], TurnWork],
        claim: TurnClaim,
        journal: JournalWriter,
    ) -> None:
        self._transcripts = transcripts
        self._open_turn = open_turn
        self._claim = claim
        self._journal = journal
        self._has_rest = False
        self._turn: TurnWork | None = None

    async def run(self) -> tuple[StopReason, RunError | None]:
        """See Work. Without a transcript the run completes at once."""
        prepared = await self._transcripts.prepare(self._claim, self._journal)
        if prepared is None:
            return StopReason.END_TURN, None
        self._has_rest = prepared.has_rest
        self._turn = self._open_turn(replace(self._claim, run=prepared.run))
        return await self._turn.run()

    async def cancel(self, *, keeps_input: bool) -> None:
        """See Work. A turn that has not begun left nothing."""
        if self._turn is not None:
            await self._turn.cancel(keeps_input=keeps_input)

    async def record_input(self) -> bool:
        return self._turn is None or await self._turn.record_input()

    async def compact(self) -> None:
        if self._turn is not None:
            await self._turn.compact()

    @property
    def result(self) -> WorkResult:
        if self._turn is None:
            return WorkResult(self._claim.run)
        result = self._turn.result
        return replace(result, starts_runs=result.starts_runs or self._has_rest)


@dataclass(frozen=True, eq=False)
class Works:
    """Returns the work of each claim."""

    turns: TurnBuilder
    engine: Engine
    compaction: TurnCompaction
    inputs: InputRecorder
    transcripts: TranscriptInputs
    open_group: Callable[[GroupClaim, JournalWriter], Work]

    def open(self, claim: Claim, journal: JournalWriter) -> Work:
        """Returns the work of a claimed run, which has not begun."""
        if isinstance(claim, GroupClaim):
            return self.open_group(claim, journal)
        if isinstance(claim, TurnClaim):

            def open_turn(turn: TurnClaim) -> TurnWork:
                return TurnWork(self.turns, self.engine, self.compaction, self.inputs, turn, journal)

            if claim.run.transcript is not None and not claim.run.input:
                return SleeptimeWork(self.transcripts, open_turn, claim, journal)
            return open_turn(claim)
        raise TypeError(f"{type(claim).__name__} is not the claim of a turn or a group")


def report_end(run: Run, metrics: TurnMetrics) -> None:
    """Logs and counts a run whose end is stored. A failed run is logged as a warning."""
    metrics.run_ended(run)
    log = _log.warning if run.status is RunStatus.FAILED else _log.info
    log(
        "run_ended",
        run_id=run.id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        status=run.status.value,
        reason=run.stop_reason.value if run.stop_reason is not None else None,
        steps=run.step_count,
        prompt_tokens=run.usage.prompt_tokens,
        completion_tokens=run.usage.completion_tokens,
        total_tokens=run.usage.total_tokens,
        first_token_ms=run.first_token_ms,
        ms=run.total_ms,
        **({} if run.error is None else {"error": run.error.reason, "error_message": run.error.message}),
    )


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
            DatabaseUnavailable, DatabaseFull: the run has not ended, and can be resumed.
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: the same, of a sleeptime run.
        """
        claim, started = active.claim, self._clock.monotonic()
        payer = claim.payer if isinstance(claim, TurnClaim) else None
        journal = self._journals.open(claim.run, claim.lease, payer)
        work = self._works.open(claim, journal)
        if claim.stalled >= self._max_stalled_claims and not active.cancelled:
            ending = await self._end_stalled(claim, work)
        else:
            ending = await self._work(active, work)
        active.ending = True
        finished = await run_to_end(self._finish(claim, work, ending, journal, started))
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

    async def _end_stalled(self, claim: Claim, work: Work) -> _Ending:
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
            children = await self._journals.retry.call(lambda: self._children.list_children(claim.run))
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
        end = RunEnd(
            ended,
            bodies,
            approval=result.approval if is_waiting else None,
            corrections=result.corrections,
            sleeptime=result.sleeptime if has_completed else None,
            extraction_turns=result.extraction_turns if has_completed else None,
            has_webhooks=claim.has_webhooks,
        )
        finished = await journal.finish(end, keeps_lease=result.compacts_after)
        report_end(finished.run, self._metrics)
        return finished
