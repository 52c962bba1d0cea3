"""The journal of a run, and the leases and claims under which a process continues it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from mnemesh_types.messages import Message, ToolReturn
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.agents import Agent, MessageBuffer
from mnemesh_orchestrator.model.approvals import Resumption
from mnemesh_orchestrator.model.compaction import Compaction
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.groups import GroupPlan, MemberTurn
from mnemesh_orchestrator.model.runs import Run, RunError, StopReason


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
        """The epoch of writes to recall."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnClaim(Claim):
    """The claim of an agent's turn, with the records that it needs."""

    agent: Agent
    conversation: Conversation
    buffer: MessageBuffer | None = None
    """The limits on the window of a voice agent with partners; None takes those of the agent's type."""
    has_unrecorded_inputs: bool = False
    """Recall may not have the inputs of earlier runs of the conversation. They are stored before that of this run."""


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
