"""A turn of a group run that is under way: its runs, also those of an earlier attempt, and what they reported."""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from mnemesh_kit.errors import NotFound
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.builtin.call import ChildRunsPort
from mnemesh_orchestrator.groups.speakers import NextTurn
from mnemesh_orchestrator.loop.journal import StampedBody
from mnemesh_orchestrator.model.events import (
    CompactionEvent,
    Delta,
    ErrorEvent,
    MemberEvent,
    MemberTurnEnded,
    MemberTurnStarted,
    MessageEvent,
    RunEvent,
    StepStarted,
    StopEvent,
    ToolProgress,
    UsageEvent,
)
from mnemesh_orchestrator.model.groups import MemberTurn, TurnOutcome
from mnemesh_orchestrator.model.journal import EndedTurn
from mnemesh_orchestrator.model.runs import Run, RunError, RunStatus, StopReason, status_of
from mnemesh_orchestrator.runs.child_runs import SpokenWords
from mnemesh_orchestrator.store.run_relations import RunRelationStore
from mnemesh_orchestrator.store.runs import RunStore

_OUTCOMES: Final = {
    RunStatus.COMPLETED: TurnOutcome.COMPLETED,
    RunStatus.FAILED: TurnOutcome.FAILED,
    RunStatus.CANCELLED: TurnOutcome.CANCELLED,
}


@dataclass(slots=True)
class OpenTurn:
    """A turn of an agent in a group run.

    `run_id` is the agent's first run of the turn. Runs that answer approvals continue it. `unsent` holds the events
    that are stored with the end of the turn.
    """

    step: NextTurn
    run_id: str
    words: SpokenWords = field(default_factory=SpokenWords)
    usage: Usage = field(default_factory=Usage)
    step_count: int = 0
    has_received: bool = False
    stop_reason: StopReason = StopReason.CANCELLED
    error: RunError | None = None
    unsent: list[StampedBody] = field(default_factory=list)

    @property
    def asks_for_approval(self) -> bool:
        """True if the newest event that is not stored requests an approval of the speaker."""
        newest = self.unsent[-1][1] if self.unsent else None
        if not isinstance(newest, MemberEvent) or newest.agent_id != self.step.speaker.agent_id:
            return False
        return isinstance(newest.body, MessageEvent) and newest.body.kind == "approval_request"

    def started(self) -> StampedBody:
        """Returns the event that begins the turn."""
        step = self.step
        body = MemberTurnStarted(step.number, step.speaker.name, step.is_selection)
        return None, MemberEvent(step.speaker.agent_id, self.run_id, body)

    def read(self, run: Run, event: RunEvent) -> bool:
        """Reads an event of a run of the turn. Returns whether it is the last one of that run."""
        self.words.read(run.config, event)
        match event.body:
            case ErrorEvent(error):
                self.error = error
            case StopEvent(reason):
                self.stop_reason = reason
            case UsageEvent(usage, step_count):
                self.usage, self.step_count = self.usage + usage, self.step_count + step_count
                return True
        return False

    def forwarded(self, run: Run, event: RunEvent) -> tuple[str | None, MemberEvent] | None:
        """Returns the event of the group run for an event of a run of the turn; None if the group run has none for it.

        The input of the agent, its stop, its usage and its error are in the events of the turn itself.
        """
        if isinstance(event.body, MemberEvent):
            return event.step_id, event.body  # an agent below the speaker asks for an approval
        is_input = event.sequence is not None and event.sequence <= run.shown_inputs
        if is_input or not isinstance(event.body, MessageEvent | CompactionEvent | StepStarted | Delta | ToolProgress):
            return None
        return event.step_id, MemberEvent(run.agent_id, run.id, event.body, event.sequence or 0)

    def ended(self) -> EndedTurn:
        """Returns the turn as it ended."""
        outcome, reason = _OUTCOMES[status_of(self.stop_reason)], self.stop_reason
        if reason is StopReason.REQUIRES_APPROVAL:
            # The approval was withdrawn with the agent's window, so that no one can answer it.
            outcome, reason = TurnOutcome.CANCELLED, StopReason.CANCELLED
        turn = MemberTurn(
            number=self.step.number,
            agent_id=self.step.speaker.agent_id,
            outcome=outcome,
            words=tuple(self.words.texts),
            is_selection=self.step.is_selection,
            has_received=self.has_received or outcome is TurnOutcome.COMPLETED,
        )
        return EndedTurn(turn, reason, self.usage, self.step_count, self.error)

    def end_event(self, ended: EndedTurn) -> StampedBody:
        """Returns the event that ends the turn."""
        body = MemberTurnEnded(ended.turn.number, ended.stop_reason, ended.usage, ended.error)
        return None, MemberEvent(ended.turn.agent_id, self.run_id, body)


def effect_id(number: int, attempt: int) -> str:
    """Returns the id by which the run of a turn is derived. Each attempt at a group run has runs of its own."""
    return f"turn/{number}/{attempt}"


async def earlier_run(
    store: RunStore, relations: RunRelationStore, children: ChildRunsPort, run: Run, step: NextTurn
) -> Run | None:
    """Returns the newest run that earlier attempts at a group run, or clients, started for a turn; None if none did.

    A run whose approval was withdrawn is returned as one that asked for nothing.
    """
    for attempt in reversed(range(len(run.retried_run_ids))):
        with suppress(NotFound):
            run_id = children.run_id(run, effect_id(step.number, attempt))
            found = await store.newest_attempt(run.organization_id, run_id)
            if found.agent_id == step.speaker.agent_id:
                return await _continued(store, relations, found)
    return None


async def _continued(store: RunStore, relations: RunRelationStore, run: Run) -> Run:
    """Returns the run that continues a run after its approval, or the run itself."""
    while run.stop_reason is StopReason.REQUIRES_APPROVAL:
        answer = await relations.continuation(run)
        if answer.is_pending:
            return run
        if answer.run_id is None:
            return _unasked(run)
        answering = await store.newest_attempt(run.organization_id, answer.run_id)
        if answering.resumes is not None and answering.resumes.withdrawn:
            return _unasked(run)
        run = answering
    return run


def _unasked(run: Run) -> Run:
    return replace(run, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, resumes=None)


def is_kept(run: Run) -> bool:
    """Returns whether a run of an earlier attempt is not retried: it completed, or it has not ended."""
    return run.status is RunStatus.COMPLETED or not run.status.ended
