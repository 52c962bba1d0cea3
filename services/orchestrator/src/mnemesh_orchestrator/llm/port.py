"""The port to a model: a stateless call that streams the answer and ends with all of it, and its limits."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from mnemesh_kit.retries import Backoff
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ContentPart, Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.errors import ProviderBadAnswer, ProviderError
from mnemesh_orchestrator.model.models import ModelInfo, ResponseFormat, ToolSchema

Sleep = Callable[[float], Awaitable[None]]

SHORT_SECONDS = 10.0
"""The limits of a question that needs no model, such as a list of models."""
PROVIDER_BACKOFF: Final = Backoff(first=0.5, maximum=8.0)
MAX_INTERRUPTED_ANSWERS: Final = 3
"""The requests with one purpose, if each answer is interrupted after its first event."""
MAX_UNUSABLE_ANSWERS: Final = 2
"""The requests with one purpose, if each answer is empty or cannot be read."""
MAX_OTHER_FORMS: Final = 4
"""The requests with one purpose that repeat another one in another form of the history. A refused one costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The limits of one call to a provider."""

    public_addresses_only: bool = False
    """True if an organization's own provider must have a public address. The operator's may have any."""
    connect_seconds: float = 10.0
    """Seconds to open a connection."""
    idle_seconds: float = 180.0
    """Seconds between two pieces of an answer, and before the first."""
    total_seconds: float = 900.0
    """Seconds of one attempt, from the first byte sent to the last byte read."""
    attempts: int = 5
    """The maximum number of requests for one answer."""
    retry_budget_seconds: float = 60.0
    """Seconds of all waits between attempts. A longer Retry-After fails at once, with its value in the error."""


DEFAULT_LIMITS = CallLimits()


@dataclass(slots=True)
class AttemptBudget:
    """The requests that one purpose, such as a step, has spent at one model, whatever level repeats them.

    The adapter counts the requests that it repeats and sets the limits; its caller counts those that end a call. A
    request that is too long is not counted: its caller sends a shorter one, within a bound of its own. `forms` counts
    those that repeat a refused request in another form.
    """

    limits: CallLimits = DEFAULT_LIMITS
    failures: int = 0
    interrupted: int = 0
    unusable: int = 0
    forms: int = 0
    waited: float = 0.0
    due: float = 0.0
    """The seconds to wait before the next request."""
    is_spent: bool = False

    def may_repeat(self, error: ProviderError, *, has_begun: bool = False) -> bool:
        """Counts a request that failed or whose answer cannot be used. Returns whether it may be sent again."""
        is_unusable = isinstance(error, ProviderBadAnswer)
        if self.is_spent or not (error.is_retryable or is_unusable):
            return False
        self.failures += 1
        self.unusable += is_unusable
        if error.is_retryable:
            self.interrupted += has_begun
            retry_after = error.retry_after
            self.due = PROVIDER_BACKOFF.delay(self.failures) if retry_after is None else retry_after
        self.is_spent = (
            self.failures >= self.limits.attempts
            or self.interrupted >= MAX_INTERRUPTED_ANSWERS
            or self.unusable >= MAX_UNUSABLE_ANSWERS
            or self.waited + self.due > self.limits.retry_budget_seconds
        )
        return not self.is_spent


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
