"""Steps: the calls of the model within a run, with their traces."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.runs import RunError, StopReason


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
    """Which steps."""

    run_id: str | None = None
    agent_id: str | None = None
    model: str | None = None
    feedback: str | None = None
    tags_any: tuple[str, ...] = ()
    trace_id: str | None = None
