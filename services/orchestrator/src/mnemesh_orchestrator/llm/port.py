"""The port to a model: a stateless call that streams what the model says and ends with the whole answer."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mnemesh_types.messages import ContentPart, Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat, ToolSchema


class ToolChoiceKind(StrEnum):
    """Whether the model must call a tool."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """AUTO, REQUIRED (any tool), or NAMED (this one)."""

    kind: ToolChoiceKind = ToolChoiceKind.AUTO
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """Everything that a call depends on; equal requests render to equal bytes.

    `messages` begin with the system message and are valid history: every tool
    call has its return. `tool_return_char_limit` clips returns in this request
    only. `time_zone` (IANA) is the agent's, for packaging. `settings` are the
    effective ones. `inner_thoughts` says that the schemas carry a "thinking"
    argument; where it is false, an adapter shows no such argument in history.
    `is_verbatim` shows what users say as it stands, without packaging.
    """

    model: ModelInfo
    settings: ModelSettings
    messages: tuple[Message, ...]
    time_zone: str
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = False
    inner_thoughts: bool = False
    response_format: ResponseFormat = ResponseFormat()
    tool_return_char_limit: int | None = None
    is_verbatim: bool = False


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A further piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A further piece of native reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A further piece of a call: `index` tells calls apart, `name` is complete at the first piece of each."""

    index: int
    name: str
    arguments: str


class FinishReason(StrEnum):
    """Why the model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A tool call as the provider gave it. The id may be missing or repeated; the arguments may be no JSON."""

    name: str
    arguments: str
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """The whole answer; the last event of a stream.

    `content` holds text and reasoning parts in the provider's order.
    `request_body` and `response_body` are the trace: JSON text, without keys.
    """

    content: tuple[ContentPart, ...]
    tool_calls: tuple[AnsweredCall, ...]
    finish_reason: FinishReason
    usage: Usage
    request_body: str = ""
    response_body: str = ""


LlmEvent = TextDelta | ReasoningDelta | ToolCallDelta | LlmAnswer


class LlmClient(Protocol):
    """One provider API. Stateless but for its connection pool, and safe to share between agents."""

    def stream(self, request: LlmRequest) -> AsyncIterator[LlmEvent]:
        """Asks the model.

        Yields deltas as they come and exactly one LlmAnswer, last. Retries
        rate limits, overload and broken connections within its budget only
        while nothing was yielded yet.

        Raises:
            ProviderError: a subclass of mnemesh_orchestrator.llm.errors by what
                went wrong; after deltas were yielded too, where the stream is
                cut or ends without a finish reason.
        """
        ...

    def render(self, request: LlmRequest) -> str:
        """The request body as JSON text, without keys; what `stream` would send."""
        ...

    async def close(self) -> None:
        """Closes the connection pool."""
        ...
