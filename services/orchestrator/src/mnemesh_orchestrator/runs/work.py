"""The work of a claimed run: the turn of an agent, or the turns of a group's agents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mnemesh_types.usage import Usage

from mnemesh_orchestrator.loop.compaction import TurnCompaction
from mnemesh_orchestrator.loop.engine import Engine
from mnemesh_orchestrator.loop.journal import STOP_ERRORS, JournalWriter
from mnemesh_orchestrator.loop.retry import RESTART_SECONDS
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.model.agents import Correction
from mnemesh_orchestrator.model.approvals import Approval
from mnemesh_orchestrator.model.claims import Claim, GroupClaim, TurnClaim
from mnemesh_orchestrator.model.runs import Run, RunError, StopReason
from mnemesh_orchestrator.model.sleeptime import SleeptimeTurn
from mnemesh_orchestrator.runs.input_recorder import InputRecorder
from mnemesh_orchestrator.runs.transcript_inputs import TranscriptInputs
from mnemesh_orchestrator.runs.turn_builder import TurnBuilder


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
        """See Work."""
        self._turn = await self._turns.build(self._claim, self._journal)
        reason = await self._engine.run(self._turn)
        return reason, STOP_ERRORS.get(reason)

    async def cancel(self, *, keeps_input: bool) -> None:
        """See Work."""
        if self._turn is None:
            # A run that has done nothing is cancelled soon, also without the services that its turn would need.
            seconds = None if self._claim.resumed or self._claim.run.resumes is not None else RESTART_SECONDS
            self._turn = await self._turns.build(self._claim, self._journal, seconds)
        await self._engine.cancel(self._turn, keeps_input=keeps_input)

    async def record_input(self) -> bool:
        """See Work."""
        return await self._inputs.record_end(self._claim.run, self._turn)

    async def compact(self) -> None:
        """See Work."""
        if self._turn is not None:
            await self._compaction.after_run(self._turn)

    @property
    def result(self) -> WorkResult:
        """See Work."""
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
        """See Work."""
        return self._turn is None or await self._turn.record_input()

    async def compact(self) -> None:
        """See Work."""
        if self._turn is not None:
            await self._turn.compact()

    @property
    def result(self) -> WorkResult:
        """See Work."""
        if self._turn is None:
            return WorkResult(self._claim.run)
        result = self._turn.result
        return replace(result, starts_runs=result.starts_runs or self._has_rest)


class GroupWorks(Protocol):
    """Returns the work of the runs of groups."""

    def open(self, claim: GroupClaim, journal: JournalWriter) -> Work:
        """Returns the work of a claimed run of a group, which has not begun."""
        ...


class Works:
    """Returns the work of each claim."""

    def __init__(
        self,
        turns: TurnBuilder,
        engine: Engine,
        compaction: TurnCompaction,
        inputs: InputRecorder,
        transcripts: TranscriptInputs,
        groups: GroupWorks,
    ) -> None:
        self._turns = turns
        self._engine = engine
        self._compaction = compaction
        self._inputs = inputs
        self._transcripts = transcripts
        self._groups = groups

    def open(self, claim: Claim, journal: JournalWriter) -> Work:
        """Returns the work of a claimed run, which has not begun."""
        if isinstance(claim, GroupClaim):
            return self._groups.open(claim, journal)
        if isinstance(claim, TurnClaim):

            def open_turn(turn: TurnClaim) -> TurnWork:
                return TurnWork(self._turns, self._engine, self._compaction, self._inputs, turn, journal)

            if claim.run.transcript is not None and not claim.run.input:
                return SleeptimeWork(self._transcripts, open_turn, claim, journal)
            return open_turn(claim)
        raise TypeError(f"{type(claim).__name__} is no claim of a turn or a group")
