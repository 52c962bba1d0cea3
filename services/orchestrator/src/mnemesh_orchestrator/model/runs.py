"""Runs: their states, ends, relations and pools, their steps, and batches of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_searchable_fields, require_texts
from mnemesh_types.agents import RunError
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.conversations import Resumption
from mnemesh_orchestrator.model.groups import GroupPlan, TranscriptRange
from mnemesh_orchestrator.model.inputs import CallbackResult, InputMessage, OnBusy, RunConfig, SentMessage

UNLIMITED: Final = 1_000_000
"""More places than a pool ever needs."""


class RunPool(StrEnum):
    """The pools of an organization. Runs that others wait for are in none."""

    SLEEPTIME = "sleeptime"
    BATCH = "batch"
    CLIENT = "client"
    """The runs of clients, if a budget or the operator limits how many execute."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """The places of each pool of an organization that has no setting of its own. 0 executes no run."""

    sleeptime: int = 8
    batch: int = 8
    client: int | None = None
    """The operator's limit, which holds beside that of the organization's budget. None is unlimited."""

    def places(self, pool: RunPool, own: int | None) -> int:
        """Returns the number of runs of a pool that execute at the same time.

        Args:
            own: the organization's own limit, if it has one.
        """
        if pool is RunPool.CLIENT:
            return min((most for most in (own, self.client) if most is not None), default=UNLIMITED)
        if own is not None:
            return own
        return self.sleeptime if pool is RunPool.SLEEPTIME else self.batch


class RunOrigin(StrEnum):
    """The cause of a run."""

    CLIENT = "client"
    GROUP = "group"
    """A run of a group: the turn of a member or of the manager."""
    AGENT = "agent"
    """A tool call of another agent."""
    SLEEPTIME = "sleeptime"
    """The messages of another agent, whose memory the run maintains."""
    SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A run that waits for another one. `agent_id` is empty for a run of a group."""

    run_id: str
    conversation_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The runs that led to a run.

    `ancestors` are the runs that wait for it, outermost first; they hold their conversations meanwhile. `depth` is the
    number of runs that led to it, those that do not wait for it included.
    """

    parent_run_id: str | None = None
    origin: RunOrigin = RunOrigin.CLIENT
    ancestors: tuple[Ancestor, ...] = ()
    depth: int = 0
    supervised_agent_ids: tuple[str, ...] = ()
    """The members of a supervisor's group, if the run is the supervisor's turn."""


class StopReason(StrEnum):
    """The reason why a run stopped."""

    END_TURN = "end_turn"
    ERROR = "error"
    LLM_API_ERROR = "llm_api_error"
    INVALID_LLM_RESPONSE = "invalid_llm_response"
    INVALID_TOOL_CALL = "invalid_tool_call"
    MAX_STEPS = "max_steps"
    MAX_TOKENS_EXCEEDED = "max_tokens_exceeded"
    NO_TOOL_CALL = "no_tool_call"
    TOOL_RULE = "tool_rule"
    CANCELLED = "cancelled"
    REQUIRES_APPROVAL = "requires_approval"
    CONTEXT_WINDOW_OVERFLOW = "context_window_overflow"
    CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT = "context_window_overflow_in_system_prompt"
    INSUFFICIENT_CREDITS = "insufficient_credits"
    CONTENT_FILTER = "content_filter"
    BUDGET_EXCEEDED = "budget_exceeded"


class RunStatus(StrEnum):
    """The status of a run."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True if the run has ended."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


_COMPLETED = {StopReason.END_TURN, StopReason.MAX_STEPS, StopReason.TOOL_RULE, StopReason.REQUIRES_APPROVAL}


def status_of(reason: StopReason) -> RunStatus:
    """Returns the status of a run that stopped for a reason."""
    if reason in _COMPLETED:
        return RunStatus.COMPLETED
    return RunStatus.CANCELLED if reason is StopReason.CANCELLED else RunStatus.FAILED


@dataclass(frozen=True, slots=True)
class MemberApproval:
    """An approval that an agent of a group run waits for, and the run that asked for it."""

    agent_id: str
    run_id: str
    approval_id: str


@dataclass(frozen=True, slots=True)
class Run:
    """One turn of an agent, from an input to a stop; or, with a `plan`, a run of a group, which has no agent."""

    id: str
    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    created_at: datetime
    updated_at: datetime
    input: tuple[InputMessage, ...]
    config: RunConfig = RunConfig()  # noqa: RUF009 -- frozen
    status: RunStatus = RunStatus.CREATED
    stop_reason: StopReason | None = None
    background: bool = False
    usage: Usage = Usage()
    step_count: int = 0
    error: RunError | None = None
    last_sequence: int = 0
    completed_at: datetime | None = None
    first_token_ms: int | None = None
    total_ms: int | None = None
    retried_run_ids: tuple[str, ...] = ()
    """The runs that this run retries: the latest, then the runs that it retried itself."""
    resumes: Resumption | None = None
    """The approval that this run answers."""
    shown_inputs: int = 0
    """The number of input messages that are events of the run. They have the first sequence numbers."""
    group_id: str | None = None
    """The group of a group run, or of the turn of one of its agents."""
    plan: GroupPlan | None = None
    """The settings of a group run."""
    lineage: Lineage = Lineage()
    transcript: TranscriptRange | None = None
    """The messages from which the input of a sleeptime run is made. The input is empty until the run begins."""
    child_run_ids: tuple[str, ...] = ()
    """The runs that this run started, in order. Not read by lists."""
    waiting_for: tuple[MemberApproval, ...] = ()
    """The approvals of other agents that the run waits for, directly or through others."""
    batch_id: str | None = None
    """The batch that the run was started in."""
    callback: CallbackResult | None = None
    """The result of the callback, if the config has one. Read by `get` and by lists."""
    input_unrecorded: bool = False
    """The run has ended, and recall may not have its input yet."""
    is_limited: bool = False
    """The run of a client needs a place among those of its organization and its agent."""
    sent: tuple[SentMessage, ...] = field(default=(), compare=False)
    """The input as the client sent it, by which a repeat is recognised. Known only until the run is stored."""

    @property
    def first_run_id(self) -> str:
        """The run whose input this run has: itself, or the first of the runs that it retries."""
        return self.retried_run_ids[-1] if self.retried_run_ids else self.id

    @property
    def pool(self) -> RunPool | None:
        """The pool that limits how many such runs execute at the same time; None if nothing does."""
        if self.lineage.origin is RunOrigin.SLEEPTIME:
            return RunPool.SLEEPTIME
        if self.batch_id is not None:
            return RunPool.BATCH
        return RunPool.CLIENT if self.is_limited else None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The conditions of a list of runs; a run must meet all that are set."""

    agent_ids: tuple[str, ...] = ()
    statuses: tuple[RunStatus, ...] = ()
    background: bool | None = None
    stop_reason: str | None = None
    conversation_id: str | None = None
    active: bool | None = None
    group_id: str | None = None
    origins: tuple[RunOrigin, ...] = ()
    parent_run_id: str | None = None
    batch_id: str | None = None


class CancelOutcome(StrEnum):
    """The result of the cancellation of a run."""

    CANCELLED = "cancelled"
    ENDED_BEFORE = "ended_before"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run that another run started. `is_awaited` is true if that one waits for its end."""

    id: str
    agent_id: str
    status: RunStatus
    stop_reason: StopReason | None
    is_awaited: bool


@dataclass(frozen=True, slots=True)
class Continuation:
    """The outcome of the approval for which a run stopped.

    `run_id` is the run that answered it. It is None while the approval is pending, and if no one can answer it any
    more.
    """

    is_pending: bool
    run_id: str | None = None


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


MAX_REQUESTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that is to be started: of a conversation, by default that of the agent, or of a group."""

    agent_id: str
    conversation_id: str
    messages: Sequence[InputMessage]
    config: RunConfig
    group_id: str | None = None
    """If set, the agent and the conversation are empty."""


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """A batch that is to be stored with its runs."""

    id: str
    organization_id: str
    subject_id: str
    created_at: datetime
    callback_url: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch with the numbers of its runs by status."""

    id: str
    created_at: datetime
    runs: Mapping[RunStatus, int]
    was_cancelled: bool = False
    last_end: datetime | None = None
    """The time of the newest end of a run."""
    callback: CallbackResult | None = None

    @property
    def unfinished(self) -> int:
        """The number of runs that wait or run."""
        return sum(count for status, count in self.runs.items() if not status.ended)

    @property
    def status(self) -> RunStatus:
        """RUNNING until all runs have ended."""
        if self.unfinished:
            return RunStatus.RUNNING
        if self.was_cancelled:
            return RunStatus.CANCELLED
        return RunStatus.COMPLETED if self.runs.get(RunStatus.COMPLETED) else RunStatus.FAILED

    @property
    def completed_at(self) -> datetime | None:
        """The time at which the last run ended."""
        return None if self.unfinished else self.last_end


def require_valid_requests(count: int) -> None:
    """Raises InvalidArgument if a batch has no request, or too many."""
    if not 1 <= count <= MAX_REQUESTS:
        raise InvalidArgument(f"requests must have 1 to {MAX_REQUESTS:,} requests.", field="requests")


def require_batch_config(config: RunConfig, field: str) -> None:
    """Raises InvalidArgument if the config of a run has what only a run of its own can have."""
    if config.callback_url is not None:
        raise InvalidArgument(f"{field}.callback_url must be absent: the batch has one.", field=f"{field}.callback_url")
    if config.on_busy is OnBusy.REJECT:
        raise InvalidArgument(f"{field}.on_busy must not be REJECT: the runs wait.", field=f"{field}.on_busy")
