"""Messages: content parts, tool calls, tool returns and approval decisions.

Members of a union are tagged structs. Recall stores them as JSON columns and the orchestrator in its journal, so tags
and field names are part of the stored format.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct


class Role(StrEnum):
    """The speaker of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    APPROVAL = "approval"
    SUMMARY = "summary"


class TextPart(Struct, frozen=True, omit_defaults=True, tag="text"):
    """Plain text. `signature` is the provider's signature over it, which is returned to the provider verbatim."""

    text: str
    signature: str | None = None


class ImagePart(Struct, frozen=True, omit_defaults=True, tag="image"):
    """An image: inline bytes with their media type, or a URL, or the id of a file."""

    data: bytes | None = None
    media_type: str | None = None
    url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class ReasoningPart(Struct, frozen=True, omit_defaults=True, tag="reasoning"):
    """Visible reasoning. `is_native` is true if it came through the provider's own reasoning channel."""

    text: str
    is_native: bool = False
    signature: str | None = None


class RedactedReasoningPart(Struct, frozen=True, omit_defaults=True, tag="redacted"):
    """Reasoning that the provider returned encrypted."""

    data: str


class OmittedReasoningPart(Struct, frozen=True, omit_defaults=True, tag="omitted"):
    """Reasoning that took place and that the provider did not return."""

    signature: str | None = None


class SummarizedReasoningPart(Struct, frozen=True, omit_defaults=True, tag="summarized"):
    """Reasoning returned as summaries together with the encrypted original."""

    id: str
    summaries: tuple[str, ...] = ()
    encrypted_content: str | None = None


ContentPart = (
    TextPart | ImagePart | ReasoningPart | RedactedReasoningPart | OmittedReasoningPart | SummarizedReasoningPart
)


def text_of(parts: Iterable[ContentPart]) -> str:
    """Returns the text parts joined by newlines. Other parts are skipped."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A tool call by the model.

    `id` is mnemesh's own and unique within the agent. `provider_id` is the provider's, which may repeat. `arguments`
    is the JSON text that the model wrote.
    """

    id: str
    name: str
    arguments: str
    provider_id: str | None = None


class ToolStatus(StrEnum):
    """The outcome of a tool call."""

    UNSPECIFIED = ""
    SUCCESS = "success"
    ERROR = "error"


class ToolReturn(Struct, frozen=True):
    """The result of a tool call, before it is packaged for the model, with what the tool printed."""

    tool_call_id: str
    name: str
    status: ToolStatus
    content: tuple[ContentPart, ...] = ()
    stdout: tuple[str, ...] = ()
    stderr: tuple[str, ...] = ()

    @classmethod
    def from_text(
        cls,
        tool_call_id: str,
        name: str,
        status: ToolStatus,
        text: str,
        stdout: tuple[str, ...] = (),
        stderr: tuple[str, ...] = (),
    ) -> "ToolReturn":
        """Returns a result whose content is one text."""
        return cls(tool_call_id, name, status, (TextPart(text),), stdout, stderr)

    @property
    def text(self) -> str:
        """The text of the content, parts joined by newlines."""
        return text_of(self.content)

    def with_text(self, text: str) -> "ToolReturn":
        """Returns a copy whose text parts are replaced by one text. Images are kept, after the text."""
        others = (part for part in self.content if not isinstance(part, TextPart))
        return msgspec.structs.replace(self, content=(TextPart(text), *others))


class Approve(Struct, frozen=True, tag="approve"):
    """The decision that a tool call may run."""

    tool_call_id: str


class Deny(Struct, frozen=True, omit_defaults=True, tag="deny"):
    """The decision that a tool call must not run."""

    tool_call_id: str
    reason: str | None = None


class ClientReturn(Struct, frozen=True, tag="return"):
    """The result of a tool call that the client ran itself."""

    tool_call_id: str
    tool_return: ToolReturn = msgspec.field(name="return")


ApprovalDecision = Approve | Deny | ClientReturn


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    The text of a user message is stored as the user wrote it. The form that the model sees (type, text, local time)
    is a pure function of the message and the agent's time zone, and is applied when a request is rendered.

    A request for approval repeats the calls of the preceding assistant message that wait for a decision. The answer
    names the request in `approval_request_id` and carries the decisions.

    `carried` is what the provider put into its message and the other fields do not hold. It is the JSON text of a
    renderer, and returns to the model of `model` only. `is_event` is true if mnemesh wrote the message in the name of
    the user.

    `agent_id` may be empty on a message that has not been stored: the write supplies it. `sequence_id` is 0 until the
    message is stored. Both, and `updated_at`, are ignored by comparisons.
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
    is_err: bool | None = None
    carried: str | None = None
    is_event: bool | None = None
    agent_id: str = field(default="", compare=False)
    updated_at: datetime | None = field(default=None, compare=False)
    sequence_id: int = field(default=0, compare=False)

    @property
    def text(self) -> str:
        """The text of the content, parts joined by newlines."""
        return text_of(self.content)

    @property
    def is_from_user(self) -> bool:
        """True if a user wrote the message, whatever its text resembles. Events in the name of the user are others'."""
        return self.role is Role.USER and not self.is_event

    @property
    def tool_call_ids(self) -> tuple[str, ...]:
        """The ids of the tool calls that the message makes, returns or decides, each once."""
        ids = dict.fromkeys(call.id for call in self.tool_calls)
        ids |= dict.fromkeys(item.tool_call_id for item in self.tool_returns)
        ids |= dict.fromkeys(item.tool_call_id for item in self.approval_decisions)
        return tuple(ids)
