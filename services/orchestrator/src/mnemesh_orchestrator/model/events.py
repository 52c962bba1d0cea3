"""What is stored of a run while it executes: its events, its journal, and the lease that it needs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from mnemesh_kit.errors import INTERNAL_TEXT
from mnemesh_types.agents import CompactionResult, RunError
from mnemesh_types.messages import ApprovalDecision, ContentPart, Message, ToolCall, ToolReturn
from mnemesh_types.usage import Usage
from msgspec import Struct, structs

from mnemesh_orchestrator.model.agents import Agent, Compaction, Correction, MessageBuffer
from mnemesh_orchestrator.model.budgets import Payer
from mnemesh_orchestrator.model.conversations import Approval, Conversation, Resumption
from mnemesh_orchestrator.model.groups import GroupPlan, MemberTurn, SleeptimeTurn
from mnemesh_orchestrator.model.runs import Run, RunStatus, Step, StepStatus, StepTrace, StopReason


class RunAccepted(Struct, frozen=True, tag="accepted"):
    """The first event of every stream."""

    agent_id: str
    conversation_id: str
    replayed: bool
    last_sequence: int


class StepStarted(Struct, frozen=True, tag="step_started"):
    """The model is called. A higher attempt replaces the deltas of a lower one."""

    number: int
    attempt: int


class Delta(Struct, frozen=True, tag="delta"):
    """A piece of the model's answer. `kind` is "assistant", "reasoning" or "tool_call"."""

    message_id: str
    otid: str
    offset: int
    kind: str
    text: str
    tool_call_id: str = ""
    tool_name: str = ""


class ToolProgress(Struct, frozen=True, omit_defaults=True, tag="tool_progress"):
    """How far the call of a tool is, in a unit of the tool. `total` is the whole, if the tool knows it."""

    tool_call_id: str
    name: str
    progress: float
    total: float | None = None
    message: str | None = None


class Keepalive(Struct, frozen=True, tag="keepalive"):
    """The run is alive and nothing happened."""


class MessageEvent(Struct, frozen=True, omit_defaults=True, tag="message"):
    """A stored message, or a part of one, as clients see it.

    `kind` is "user", "system", "assistant", "reasoning", "hidden_reasoning", "tool_call", "tool_return",
    "approval_request", "approval_response" or "summary". The fields of the kind are set.
    """

    kind: str
    message_id: str
    otid: str
    message_time: datetime
    content: tuple[ContentPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_returns: tuple[ToolReturn, ...] = ()
    name: str | None = None
    sender_id: str | None = None
    approval_request_id: str | None = None
    decisions: tuple[ApprovalDecision, ...] = ()


class CompactionEvent(Struct, frozen=True, tag="compaction"):
    """The context window was compacted."""

    result: CompactionResult


class ErrorEvent(Struct, frozen=True, tag="error"):
    """The run failed."""

    error: RunError


class StopEvent(Struct, frozen=True, tag="stop"):
    """The run stopped."""

    reason: StopReason
    status: RunStatus


class UsageEvent(Struct, frozen=True, omit_defaults=True, tag="usage"):
    """The usage of the run; the last event of every stream."""

    usage: Usage
    step_count: int
    child_run_ids: tuple[str, ...] = ()
    context_tokens: int | None = None
    """The tokens of the request and the answer of the last step."""


class MemberTurnStarted(Struct, frozen=True, tag="member_turn_started"):
    """An agent of a group run begins its turn, the `number`-th from 1."""

    number: int
    agent_name: str
    is_selection: bool = False


class MemberTurnEnded(Struct, frozen=True, tag="member_turn_ended"):
    """An agent's turn in a group run has ended."""

    number: int
    stop_reason: StopReason
    usage: Usage
    error: RunError | None = None


class MemberEvent(Struct, frozen=True, tag="member"):
    """An event of a group run that comes from the run of one of its agents.

    `sequence` is its number in that run; 0 for a live event and for one of the group run itself.
    """

    agent_id: str
    run_id: str
    body: MessageEvent | CompactionEvent | StepStarted | Delta | ToolProgress | MemberTurnStarted | MemberTurnEnded
    sequence: int = 0


EventBody = (
    RunAccepted
    | StepStarted
    | Delta
    | ToolProgress
    | Keepalive
    | MessageEvent
    | CompactionEvent
    | ErrorEvent
    | StopEvent
    | UsageEvent
    | MemberEvent
)

LiveBody = StepStarted | Delta | ToolProgress | MemberEvent
"""The live events that are stored if the run is in the background and streams tokens."""

DurableBody = MessageEvent | CompactionEvent | ErrorEvent | StopEvent | UsageEvent | MemberEvent


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run.

    Durable events have contiguous sequence numbers from 1. Stored live events have a position: the epoch of the lease
    holder, and a number from 1 within it.
    """

    run_id: str
    created_at: datetime
    body: EventBody
    sequence: int | None = None
    step_id: str | None = None
    position: tuple[int, int] | None = None

    @property
    def is_transient(self) -> bool:
        """Returns whether the event means nothing after the turn: a keepalive, a delta, or the progress of a tool."""
        body = self.body.body if isinstance(self.body, MemberEvent) else self.body
        return isinstance(body, Keepalive | Delta | ToolProgress)

    def is_included(self, kinds: Collection[str]) -> bool:
        """Returns whether a stream that asked for these kinds of events has the event. No kinds select all.

        A delta belongs to its message. A summary is recorded only if the run asks for it, so it is always included.
        """
        body = self.body.body if isinstance(self.body, MemberEvent) else self.body
        if isinstance(body, StepStarted):
            return not kinds or "step_started" in kinds
        return not kinds or not isinstance(body, MessageEvent | Delta) or body.kind == "summary" or body.kind in kinds


def naming_children(events: Sequence[RunEvent], child_run_ids: tuple[str, ...]) -> tuple[RunEvent, ...]:
    """Returns the last events of a run with the ids of the runs that it started in its usage."""
    return tuple(
        replace(event, body=structs.replace(event.body, child_run_ids=child_run_ids))
        if child_run_ids and isinstance(event.body, UsageEvent)
        else event
        for event in events
    )


def with_children(run: Run, started: Sequence[Run]) -> Run:
    """Returns a run with the runs that its end started."""
    return replace(run, child_run_ids=(*run.child_run_ids, *(child.id for child in started))) if started else run


class EntryKind(StrEnum):
    """The content of a journal entry."""

    ANSWER = "answer"
    STARTED = "started"
    RESULT = "result"
    DECISION = "decision"
    COMPACTION = "compaction"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class JournalledAnswer:
    """The model's answer as a message with its final ids, and the other values that the commit needs.

    `leading` are the messages that enter the window before it: the input of the run at the first step, and a heartbeat.
    `length_cut` is true if the model reached its output limit. `seen` holds the revisions of the memory blocks that the
    request showed, by label; None in journals that did not record it. `gated` holds the ordinals of the calls that wait
    for a decision. `filtered` is true if the provider's content filter cut the text off.
    """

    message: Message
    leading: tuple[Message, ...]
    usage: Usage
    base_version: int
    system_text: str | None
    length_cut: bool = False
    attempts: int = 1
    model_ms: int = 0
    seen: Mapping[str, int] | None = None
    gated: tuple[int, ...] = ()
    filtered: bool = False


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn of a group run, and how the run of its agent ended."""

    turn: MemberTurn
    stop_reason: StopReason
    usage: Usage = Usage()
    step_count: int = 0
    error: RunError | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of a step, or of a turn of a group run. Entries are insert-only: the first one of a key is kept.

    `ordinal` is that of the tool call, 0 for an answer, the version of the window for a compaction, and the number of a
    turn. The `step_id` of a turn is the id of its agent's run. Exactly one payload matches the kind; STARTED and
    DECISION have none, but STARTED has the name of the `tool` if a program made the call. `at` is the time of the
    messages that are made from the entry, so that a replay makes the same ones. `seen` holds the block revisions that
    the agent knows from its own edit in this call, for the calls that follow.
    """

    step_id: str
    kind: EntryKind
    at: datetime
    ordinal: int = 0
    answer: JournalledAnswer | None = None
    result: ToolReturn | None = None
    seen: Mapping[str, int] | None = None
    compaction: Compaction | None = None
    turn: EndedTurn | None = None
    tool: str | None = None


def retried_plan(plan: GroupPlan, entries: Iterable[JournalEntry]) -> GroupPlan:
    """Returns the plan of a group run that retries another one: the turns that completed are not repeated.

    Args:
        plan: The plan of the run that is retried.
        entries: The journal of that run.
    """
    ended = sorted((entry.turn.turn for entry in entries if entry.turn is not None), key=lambda turn: turn.number)
    return replace(plan, completed=(*plan.completed, *(turn for turn in ended if turn.completed)))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Lease:
    """The right to execute a run. Every write of a run is conditional on its epoch.

    Writes to recall have the epoch `recall_epoch`, which is `lead` higher.
    """

    run_id: str
    conversation_id: str
    instance_id: str
    epoch: int
    lead: int = field(default=0, compare=False)

    @property
    def recall_epoch(self) -> int:
        return self.epoch + self.lead


@dataclass(frozen=True, slots=True)
class RunHead:
    """The sequence number of the newest event of a run, and whether the run has ended."""

    sequence: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """The leases that were lost, the ids of the runs that are to be cancelled, and the heads of runs."""

    lost: tuple[Lease, ...]
    cancelled: tuple[str, ...]
    heads: Mapping[str, RunHead]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run that this process has claimed: a TurnClaim or a GroupClaim.

    `resumed` is true if another claim came before, so that there can be a journal. `cancelled` is true if the run is
    to be cancelled. `claims` is the number of earlier claims, and `stalled` the number of the last takeovers in a row
    that found no progress.
    """

    run: Run
    lease: Lease
    resumed: bool = False
    cancelled: bool = False
    claims: int = 0
    stalled: int = 0
    has_webhooks: bool = False
    """The organization has webhooks, which are told the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnClaim(Claim):
    """The claim of an agent's turn, with the records that it needs."""

    agent: Agent
    conversation: Conversation
    buffer: MessageBuffer | None = None
    """The limits on the window of a voice agent with partners; None takes those of the agent's type."""
    has_unrecorded_inputs: bool = False
    """Recall may not have the inputs of earlier runs of the conversation. They are stored before that of this run."""
    payer: Payer | None = None
    """Who pays for the steps; None if no budget limits them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupClaim(Claim):
    """The claim of a run of a group."""

    plan: GroupPlan


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The result of a request to start a run. `claim` is set if the run can start at once.

    `frees_first` is true if the first run of the conversation waits for a place and can start without one, because this
    run waits after it.
    """

    run: Run
    replayed: bool = False
    claim: Claim | None = None
    frees_first: bool = False


_DEFECT = RunError("INTERNAL", INTERNAL_TEXT)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """An ended run and what is stored with it. `unstored` are events that were published and not stored yet.

    `corrections` replace the agent's if there are any. `approval` is pending afterwards.
    """

    run: Run
    bodies: Sequence[DurableBody] = ()
    unstored: tuple[RunEvent, ...] = ()
    steps: Sequence[Step] = ()
    traces: Sequence[StepTrace] = ()
    approval: Approval | None = None
    corrections: Sequence[Correction] = ()
    sleeptime: SleeptimeTurn | None = None
    """The completed turn of an agent with partners."""
    extraction_turns: int | None = None
    """For a completed turn that counts: the number of turns after which facts are extracted."""
    has_webhooks: bool = False
    """Webhooks may want to be told the end."""

    @property
    def last_message_at(self) -> datetime | None:
        """The time of the run's last message; None if no step was committed.

        A failed step leaves no message. It is the last one, so it is among those that are stored with the end.
        """
        failed = sum(step.status is StepStatus.FAILED and not step.origin for step in self.steps)
        return self.run.completed_at if self.run.step_count > failed else None

    @property
    def forms(self) -> tuple["RunEnd", ...]:
        """The forms in which the end is stored: each is tried if the store refuses the one before."""
        minimal = self.minimal()
        forms = (self, self.without_records(), minimal)
        return forms if self.sleeptime is None else (*forms, replace(minimal, sleeptime=None))

    def without_records(self) -> "RunEnd":
        """Returns the end without steps, traces and corrections."""
        return replace(self, steps=(), traces=(), corrections=())

    def minimal(self) -> "RunEnd":
        """Returns the status and the stop reason, and a fixed text in place of the error. A store can always hold it.

        Without its approval a run cannot wait, so it has failed.
        """
        run = self.run
        if self.approval is not None:
            run = replace(run, status=RunStatus.FAILED, stop_reason=StopReason.ERROR, error=_DEFECT)
        elif run.error is not None:
            run = replace(run, error=_DEFECT)
        run = replace(run, usage=Usage(), first_token_ms=None)
        bodies: tuple[DurableBody, ...] = () if run.error is None else (ErrorEvent(run.error),)
        stop = StopEvent(run.stop_reason or StopReason.ERROR, run.status)
        bodies = (*bodies, stop, UsageEvent(run.usage, run.step_count))
        bare = RunEnd(run, bodies, sleeptime=self.sleeptime, extraction_turns=self.extraction_turns)
        return replace(bare, has_webhooks=self.has_webhooks)


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The result of the end of a run.

    `run` is the run as it is stored, with the runs that its end started. `has_next` is true if another run of the
    conversation waits. `started` are the conversations of the runs that its end started.
    """

    run: Run
    has_next: bool = False
    started: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnfinishedDecision:
    """A decision about an approval whose run failed before it had executed all approved calls.

    `entries` are the journal entries of these calls, of every run that tried.
    """

    resumption: Resumption
    entries: tuple[JournalEntry, ...]
