"""Steps: the calls of the model within a run, with their traces."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_texts
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.filters import require_searchable_fields
from mnemesh_orchestrator.model.runs import RunError, StopReason

_FEEDBACK: Final = frozenset({"positive", "negative"})
_MAX_TAGS: Final = 50
_MAX_TAG: Final = 200

COMPACTION: Final = "compaction"
"""The origin of steps that are calls of summary models."""


class StepStatus(StrEnum):
    """The status of a step."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model and its consequences."""

    id: str
    run_id: str
    agent_id: str
    conversation_id: str
    number: int
    model: str
    provider: str
    context_window: int
    created_at: datetime
    status: StepStatus = StepStatus.PENDING
    endpoint: str | None = None
    stop_reason: StopReason | None = None
    usage: Usage = Usage()
    error: RunError | None = None
    attempts: int = 1
    model_ms: int | None = None
    total_ms: int | None = None
    completed_at: datetime | None = None
    feedback: str | None = None
    """"positive" or "negative": the feedback of a person, as are the tags."""
    tags: tuple[str, ...] = ()
    trace_id: str | None = None
    """The id of the distributed trace, if tracing is on."""
    origin: str | None = None
    """COMPACTION for a call of a summary model; None for a step of the loop."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """The request to the model and its response at a step: JSON texts, without keys."""

    step_id: str
    request: str
    response: str
    model_ms: int
    created_at: datetime
    shared: "SharedRequest | None" = field(default=None, compare=False)
    """The parts of the request that a store does not have to store again."""


@dataclass(frozen=True, slots=True)
class SharedRequest:
    """The characters at the start and at the end that a request has in common with one of an earlier step of its run.

    The earlier request is stored whole.
    """

    step_id: str
    start: int
    end: int


def shared_request(earlier: StepTrace, request: str) -> SharedRequest | None:
    """Returns what a request shares with an earlier one; None if that is less than half of it."""
    known = earlier.request
    start = _common_length(known, request)
    rest = min(len(known), len(request)) - start
    end = _common_length(known[len(known) - rest :][::-1], request[len(request) - rest :][::-1])
    return SharedRequest(earlier.step_id, start, end) if 2 * (start + end) >= len(request) else None


def _common_length(one: str, other: str) -> int:
    """Returns the length of the common prefix of two texts, by bisection."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class StepFilter:
    """The conditions of a list of steps; a step must meet all that are set."""

    run_id: str | None = None
    agent_id: str | None = None
    model: str | None = None
    feedback: str | None = None
    tags_any: tuple[str, ...] = ()
    trace_id: str | None = None
    start: datetime | None = None
    """Steps that were created at this time or later."""
    end: datetime | None = None
    """Steps that were created before this time."""
    has_feedback: bool | None = None


def require_feedback(feedback: str | None, field: str = "feedback") -> str | None:
    """Returns the feedback on a step; None for none. Raises InvalidArgument if it is neither positive nor negative."""
    if feedback is not None and feedback not in _FEEDBACK:
        raise InvalidArgument(f'{field} must be "positive" or "negative".', field=field)
    return feedback


def valid_step_tags(tags: Sequence[str], field: str = "tags") -> tuple[str, ...]:
    """Returns the tags in their order, each once. Raises InvalidArgument if there are too many or one is too long."""
    return tuple(dict.fromkeys(require_texts(tags, field, max_items=_MAX_TAGS, min_chars=1, max_chars=_MAX_TAG)))


def require_valid_step_filter(filter_: StepFilter) -> StepFilter:
    """Returns `filter_` if steps can be searched with it. Raises InvalidArgument."""
    require_feedback(filter_.feedback, "filter.feedback")
    valid_step_tags(filter_.tags_any, "filter.tags_any")
    return require_searchable_fields(filter_, "filter.")
