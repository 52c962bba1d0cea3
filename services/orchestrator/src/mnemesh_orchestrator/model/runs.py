"""Runs, steps, and what the journal keeps of them."""

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
    """Why a run stopped."""

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
    """Where a run stands."""

    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Nothing more will happen in the run."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


_COMPLETED = {StopReason.END_TURN, StopReason.MAX_STEPS, StopReason.TOOL_RULE, StopReason.REQUIRES_APPROVAL}


def status_of(reason: StopReason) -> RunStatus:
    """The status of a run that stopped for a reason."""
    if reason in _COMPLETED:
        return RunStatus.COMPLETED
    return RunStatus.CANCELLED if reason is StopReason.CANCELLED else RunStatus.FAILED


class OnBusy(StrEnum):
    """What to do where another run holds the conversation."""

    WAIT = "wait"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class InputMessage:
    """What somebody sends; it becomes a stored message when its step commits."""

    content: tuple[ContentPart, ...]
    role: Role = Role.USER
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs. `parameters` is a JSON schema of an object as text."""

    name: str
    parameters: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How a run is carried out; stored with it."""

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
    """Of this run; None is the agent's."""


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed, by a name of ErrorReason."""

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
    """The runs whose input it takes up again: the one that failed last, then those which that one took up."""
    resumes: Resumption | None = None
    """The approval that it answers."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for approval; its id is that of the stored message. `config` is that of the run which asked."""

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
    """An answer to an approval: the pending one where no id is given.

    Without a config the answering run has that of the run which asked; with one, it keeps that run's client tools
    unless it brings its own.
    """

    decisions: tuple[ApprovalDecision, ...]
    approval_request_id: str | None = None
    config: RunConfig | None = None
    withdrawn: bool = False

    def config_after(self, asking: RunConfig) -> RunConfig:
        """The config of the answering run."""
        if self.config is None:
            return asking
        return self.config if self.config.client_tools else replace(self.config, client_tools=asking.client_tools)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to carry out a run. Every write of a run is conditional on its epoch."""

    run_id: str
    conversation_id: str
    owner: str
    epoch: int


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Step:
    """One question to the model and what followed from its answer."""

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
    """"positive" or "negative": a person's verdict, as are the tags."""
    tags: tuple[str, ...] = ()
    trace_id: str | None = None
    """Of the distributed trace that it is a part of, where tracing is on."""


@dataclass(frozen=True, slots=True)
class StepTrace:
    """What went to the model and came back at a step: JSON texts, without keys."""

    step_id: str
    request: str
    response: str
    model_ms: int
    created_at: datetime


class EntryKind(StrEnum):
    """What a journal entry holds."""

    ANSWER = "answer"
    STARTED = "started"
    RESULT = "result"
    DECISION = "decision"
    COMPACTION = "compaction"


@dataclass(frozen=True, slots=True)
class JournalledAnswer:
    """The model's answer as a message with its final ids, and what the commit needs besides.

    `leading` are the messages that enter the window before it: the run's input
    at the first step, and a heartbeat. `length_cut` says that the model ran
    into its output limit. `seen` are the revisions of the memory blocks that
    the request showed, by label; None in journals that do not know. `gated`
    are the ordinals of the calls that wait for a decision.
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
    """An insert-only record of a step: the first one of its kind and ordinal stands.

    `ordinal` is the call's, 0 for an answer, the window's version for a
    compaction. Exactly one of the payloads fits the kind; STARTED and DECISION
    have none. `at` dates the messages that are made of it, so that a replay
    makes the same ones. `seen` are the block revisions that the agent knows by
    its own edit in this call, for the calls that follow.
    """

    step_id: str
    kind: EntryKind
    at: datetime
    ordinal: int = 0
    answer: JournalledAnswer | None = None
    result: ToolReturn | None = None
    seen: Mapping[str, int] | None = None
    compaction: Compaction | None = None
