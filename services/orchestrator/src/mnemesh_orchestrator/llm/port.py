"""The port to a model: a stateless call that streams the answer and ends with all of it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mnemesh_types.messages import ContentPart, Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.attempts import AttemptBudget
from mnemesh_orchestrator.model.models import ModelInfo, ModelSettings, ResponseFormat, ToolSchema
from mnemesh_orchestrator.model.providers import OwnModels


class ToolChoiceKind(StrEnum):
    """The obligation of the model to call a tool."""

    AUTO = "auto"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """AUTO, REQUIRED (any tool), or NAMED (this tool)."""

    kind: ToolChoiceKind = ToolChoiceKind.AUTO
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """All inputs of a call. Equal requests render to equal bytes.

    `messages` start with the system message and are a valid history: every tool call has its return.
    `tool_return_char_limit` cuts returns in this request only. `time_zone` (IANA) is the agent's, for packaging.
    `settings` are the effective ones. `inner_thoughts` means that the schemas have a "thinking" argument; if false, an
    adapter shows no such argument in the history. `is_verbatim` shows user messages without packaging.
    """

    model: ModelInfo
    settings: ModelSettings
    messages: tuple[Message, ...]
    time_zone: str
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parameters: str | None = None
    """A JSON object with parameters in the words of OpenAI's chat API. An adapter sends those that its API has."""
    parallel_tool_calls: bool = False
    inner_thoughts: bool = False
    response_format: ResponseFormat = ResponseFormat()
    tool_return_char_limit: int | None = None
    is_verbatim: bool = False


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of native reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a tool call. `index` identifies the call; `name` is complete in its first piece."""

    index: int
    name: str
    arguments: str


class FinishReason(StrEnum):
    """The reason why the model stopped."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A tool call as the provider returned it. The id may be missing or repeated; the arguments may be invalid JSON."""

    name: str
    arguments: str
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """The whole answer; the last event of a stream.

    `content` holds text and reasoning parts in the provider's order, and `carried` what else the provider put into its
    message, as JSON text that only the adapter reads. `finish_word` is its own word for the finish reason, if it gave
    one. `request_body` and `response_body` are for the trace: JSON text, without keys.
    """

    content: tuple[ContentPart, ...]
    tool_calls: tuple[AnsweredCall, ...]
    finish_reason: FinishReason
    usage: Usage
    request_body: str = ""
    response_body: str = ""
    carried: str | None = None
    finish_word: str | None = None


LlmEvent = TextDelta | ReasoningDelta | ToolCallDelta | LlmAnswer


class LlmClient(Protocol):
    """One provider API. It has no state but its connection pool, and agents may share it."""

    def stream(self, request: LlmRequest, budget: AttemptBudget | None = None) -> AsyncIterator[LlmEvent]:
        """Calls the model.

        Yields deltas as they arrive, and exactly one LlmAnswer at the end. Retries rate limits, overload and broken
        connections within the budget, unless something was yielded. Without a budget, the call has one of its own.

        Raises:
            ProviderError: a subclass from mnemesh_orchestrator.llm.errors. Also raised after deltas, if the stream is
                cut or ends without a finish reason.
        """
        ...

    def render(self, request: LlmRequest) -> str:
        """Returns the request body that `stream` would send, as JSON text without keys."""
        ...

    async def close(self) -> None:
        """Closes the connection pool."""
        ...


class ProviderSource(Protocol):
    """The providers and overrides that organizations have registered. The store of providers implements it."""

    async def own(self, organization_id: str) -> OwnModels:
        """Returns everything that an organization registered; revision 0 if it registered nothing."""
        ...

    async def revisions(self) -> Mapping[str, int]:
        """Returns the current revision of each organization that registered anything."""
        ...
