"""The journal: the records from which another process can continue a step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from mnemesh_types.messages import Message, ToolReturn
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.compaction import Compaction
from mnemesh_orchestrator.model.groups import GroupPlan, MemberTurn
from mnemesh_orchestrator.model.runs import RunError, StopReason


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
