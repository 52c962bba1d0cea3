"""Messages as the step loop knows them: content parts, tool calls, tool returns.

Members of a union are tagged structs, so that the journal's JSON tells them apart.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    APPROVAL = "approval"
    SUMMARY = "summary"


class TextPart(Struct, frozen=True, omit_defaults=True, tag="text"):
    """Plain text."""

    text: str
    signature: str | None = None


class ImagePart(Struct, frozen=True, omit_defaults=True, tag="image"):
    """A picture: inline bytes with their media type, or a URL, or the id of a file."""

    data: bytes | None = None
    media_type: str | None = None
    url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class ReasoningPart(Struct, frozen=True, omit_defaults=True, tag="reasoning"):
    """Thinking in the open; native where it came by the provider's reasoning channel."""

    text: str
    is_native: bool = False
    signature: str | None = None


class RedactedReasoningPart(Struct, frozen=True, omit_defaults=True, tag="redacted_reasoning"):
    """Thinking that the provider hands out encrypted."""

    data: str


class OmittedReasoningPart(Struct, frozen=True, omit_defaults=True, tag="omitted_reasoning"):
    """Thinking that happened and is not shown."""

    signature: str | None = None


class SummarizedReasoningPart(Struct, frozen=True, omit_defaults=True, tag="summarized_reasoning"):
    """Thinking shown as summaries beside the encrypted original."""

    id: str
    summaries: tuple[str, ...] = ()
    encrypted_content: str | None = None


ContentPart = (
    TextPart | ImagePart | ReasoningPart | RedactedReasoningPart | OmittedReasoningPart | SummarizedReasoningPart
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call by the model. `id` is mnemesh's own; `arguments` is the JSON text that the model gave."""

    id: str
    name: str
    arguments: str
    provider_id: str | None = None


class ToolStatus(StrEnum):
    """How a tool call ended."""

    SUCCESS = "success"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """What a tool call came to: its text (before packaging for the model) and what it printed."""

    tool_call_id: str
    name: str
    status: ToolStatus
    text: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


class Approve(Struct, frozen=True, tag="approve"):
    """The tool may run."""


class Deny(Struct, frozen=True, omit_defaults=True, tag="deny"):
    """The tool must not run."""

    reason: str | None = None


class ClientReturn(Struct, frozen=True, omit_defaults=True, tag="client_return"):
    """The client ran the tool itself, and this is what it came to."""

    status: ToolStatus
    text: str
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()


Decision = Approve | Deny | ClientReturn


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What a person, or a client, decided about one call."""

    tool_call_id: str
    decision: Decision


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        """Sums field by field; a sum is None only where neither side was reported."""

        def plus(left: int | None, right: int | None) -> int | None:
            return left if right is None else right if left is None else left + right

        return Usage(
            plus(self.prompt_tokens, other.prompt_tokens),
            plus(self.completion_tokens, other.completion_tokens),
            plus(self.total_tokens, other.total_tokens),
            plus(self.cached_input_tokens, other.cached_input_tokens),
            plus(self.cache_write_tokens, other.cache_write_tokens),
            plus(self.reasoning_tokens, other.reasoning_tokens),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    What a user said is kept as it was said; the packaging that the model sees
    (type, text, local time) is a pure function of the message and the agent's
    time zone, applied when a request is rendered.

    A request for approval repeats those calls of the assistant message before
    it that wait for a decision; the answer to it names it and decides them.
    """

    id: str
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
    conversation_id: str | None = None
    is_err: bool = False
    sequence_id: int = field(default=0, compare=False)

    @property
    def text(self) -> str:
        """The plain text of the content, parts joined by newlines."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))
