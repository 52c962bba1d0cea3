"""What recall keeps: messages with their parts, and the context window of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from mnemesh_kit.ids import derive_id

_NO_TIME = datetime.min.replace(tzinfo=UTC)


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    APPROVAL = "approval"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Plain text."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class InlineImage:
    """A picture's bytes."""

    data: bytes
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class ImageUrl:
    """A picture elsewhere."""

    url: str


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A picture that a provider or a store knows by id."""

    file_id: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture."""

    source: InlineImage | ImageUrl | ImageFile
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Thinking in the open."""

    text: str
    is_native: bool = False
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class RedactedReasoningPart:
    """Thinking that the provider hands out encrypted."""

    data: str


@dataclass(frozen=True, slots=True)
class OmittedReasoningPart:
    """Thinking that is not shown."""

    signature: str | None = None


@dataclass(frozen=True, slots=True)
class SummarizedReasoningPart:
    """Thinking shown as summaries."""

    id: str
    summaries: tuple[str, ...] = ()
    encrypted_content: str | None = None


ContentPart = (
    TextPart | ImagePart | ReasoningPart | RedactedReasoningPart | OmittedReasoningPart | SummarizedReasoningPart
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str
    provider_id: str | None = None


class ToolStatus(StrEnum):
    """How a tool call ended."""

    UNSPECIFIED = ""
    SUCCESS = "success"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """What a tool call came to."""

    tool_call_id: str
    name: str
    status: ToolStatus
    content: tuple[ContentPart, ...] = ()
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Approve:
    """Yes."""


@dataclass(frozen=True, slots=True)
class Deny:
    """No, and perhaps why."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """One decision of an approval answer; a ToolReturn means that the client ran the tool itself."""

    tool_call_id: str
    decision: Approve | Deny | ToolReturn


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One stored message. `sequence_id` is 0 until it is stored."""

    id: str
    agent_id: str
    role: Role
    created_at: datetime
    content: tuple[ContentPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_returns: tuple[ToolReturn, ...] = ()
    approval_decisions: tuple[ApprovalDecision, ...] = ()
    approval_request_id: str | None = None
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None
    model: str | None = None
    step_id: str | None = None
    run_id: str | None = None
    turn_id: str | None = None
    is_err: bool | None = None
    conversation_id: str | None = None
    updated_at: datetime | None = None
    sequence_id: int = 0

    @property
    def said(self) -> Message:
        """The message without what its storing adds: two messages with one id must agree in this."""
        return replace(self, created_at=_NO_TIME, updated_at=None, sequence_id=0, conversation_id=None)

    @property
    def tool_call_ids(self) -> Iterable[str]:
        """The ids of the tool calls that the message makes, returns or decides on, each once."""
        ids = dict.fromkeys(call.id for call in self.tool_calls)
        ids |= dict.fromkeys(answer.tool_call_id for answer in self.tool_returns)
        ids |= dict.fromkeys(decision.tool_call_id for decision in self.approval_decisions)
        return ids


def default_conversation_id(agent_id: str) -> str:
    """The conversation that agent-level calls mean."""
    return derive_id("conv", agent_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Messages to store, at the end of a window where a conversation is named."""

    agent_id: str
    conversation_id: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The numbers that the messages of a batch have, and the window's version where one was named."""

    sequence_ids: tuple[int, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages a list shows; what is None or empty does not narrow it."""

    agent_ids: tuple[str, ...] = ()
    conversation_ids: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    run_id: str | None = None
    step_id: str | None = None
    group_id: str | None = None
    turn_id: str | None = None
    otid: str | None = None
    include_err: bool = False
    tool_call_id: str | None = None
    text: str | None = None
    from_time: datetime | None = None
    """Inclusive."""
    until_time: datetime | None = None
    """Inclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What the erasure of an agent took away."""

    messages: int
    contexts: int
