"""Events of a run. Their bodies are tagged structs, which the event table stores as JSON."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from mnemesh_types.messages import ApprovalDecision, ContentPart, ToolCall, ToolReturn
from mnemesh_types.usage import Usage
from msgspec import Struct, structs

from mnemesh_orchestrator.model.compaction import CompactionResult
from mnemesh_orchestrator.model.runs import RunError, RunStatus, StopReason


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
