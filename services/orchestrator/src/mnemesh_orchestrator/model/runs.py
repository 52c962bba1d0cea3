"""Runs, steps and journal entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from mnemesh_types.messages import ApprovalDecision, ContentPart, Message, Role, ToolReturn
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.approvals import AskedStep, Resumption
from mnemesh_orchestrator.model.compaction import Compaction
from mnemesh_orchestrator.model.models import ResponseFormat


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


class OnBusy(StrEnum):
    """The reaction to another run that holds the conversation: wait for it, or reject the request."""

    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message that a client sends. It becomes a stored message when its step is committed."""

    content: tuple[ContentPart, ...]
    role: Role = Role.USER
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs. `parameters` is a JSON schema of type object, as text."""

    name: str
    parameters: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The configuration of a run. It is stored with the run."""

    max_steps: int = 50
    stream_tokens: bool = False
    include_events: tuple[str, ...] = ()
    override_model: str | None = None
    override_system: str | None = None
    include_compaction_events: bool = False
    assistant_messages: bool = True
    assistant_tool_name: str = "send_message"
    assistant_tool_argument: str = "message"
    on_busy: OnBusy = OnBusy.WAIT
    metadata: str | None = None
    keepalive_seconds: int = 30
    client_tools: tuple[ClientTool, ...] = ()
    response_format: ResponseFormat | None = None
    """The response format of this run; None takes the agent's."""


@dataclass(frozen=True, slots=True)
class RunError:
    """The error of a failed run. `reason` is a name of ErrorReason."""

    reason: str
    message: str
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One turn: from an input to a stop."""

    id: str
    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    created_at: datetime
    updated_at: datetime
    input: tuple[InputMessage, ...]
    config: RunConfig = RunConfig()
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
    takes_up: tuple[str, ...] = ()
    """The runs whose input this run retries: the one that failed last, then those which that one retried."""
    resumes: Resumption | None = None
    """The approval that this run answers."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for approval. Its id is that of the stored message; `config` is that of the run that asked."""

    id: str
    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    run_id: str
    created_at: datetime
    config: RunConfig
    asked: AskedStep


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The answer to an approval. Without an id, it answers the pending one.

    Without a config, the answering run has the config of the run that asked. With one, it keeps that run's client tools
    unless it has its own.
    """

    decisions: tuple[ApprovalDecision, ...]
    approval_request_id: str | None = None
    config: RunConfig | None = None
    withdrawn: bool = False

    def config_after(self, asking: RunConfig) -> RunConfig:
        """Returns the config of the answering run."""
        if self.config is None:
            return asking
        return self.config if self.config.client_tools else replace(self.config, client_tools=asking.client_tools)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to execute a run. Every write of a run is conditional on its epoch."""

    run_id: str
    conversation_id: str
    owner: str
    epoch: int


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


class EntryKind(StrEnum):
    """The content of a journal entry."""

    ANSWER = "answer"
    STARTED = "started"
    RESULT = "result"
    DECISION = "decision"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class JournalledAnswer:
    """The model's answer as a message with its final ids, and the other values that the commit needs.

    `leading` are the messages that enter the window before it: the input of the run at the first step, and a heartbeat.
    `length_cut` is true if the model reached its output limit. `seen` holds the revisions of the memory blocks that the
    request showed, by label; None in journals that did not record it. `gated` holds the ordinals of the calls that wait
    for a decision.
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


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of a step. Entries are insert-only: the first one of a kind and ordinal is kept.

    `ordinal` is that of the tool call, 0 for an answer, and the version of the window for a compaction. Exactly one
    payload matches the kind; STARTED and DECISION have none. `at` is the time of the messages that are made from the
    entry, so that a replay makes the same ones. `seen` holds the block revisions that the agent knows from its own edit
    in this call, for the calls that follow.
    """

    step_id: str
    kind: EntryKind
    at: datetime
    ordinal: int = 0
    answer: JournalledAnswer | None = None
    result: ToolReturn | None = None
    seen: Mapping[str, int] | None = None
    compaction: Compaction | None = None
