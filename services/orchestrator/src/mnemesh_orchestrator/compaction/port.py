"""Compaction as its parts see it: requests, results, and the interface of summarizers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mnemesh_types.messages import Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.compaction.planner import Cut, Sizes
from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.core_memory import MemoryAccess, memory_access
from mnemesh_orchestrator.model.episodes import EpisodeCommit


@dataclass(frozen=True, slots=True)
class SummaryCall:
    """One call of a summary model. `error` is what ended it; None if the model answered."""

    request: LlmRequest
    request_body: str
    response_body: str
    usage: Usage
    seconds: float
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A window that must become smaller.

    `llm_request` is the next request to the model, complete, with the window's messages at its head. `messages` are
    those, system message first. `turn_start` is the index where the current turn starts. `sizes` holds the trigger and
    the limit. The messages that leave must have at least `min_gain` tokens; None accepts any gain, for a compaction on
    demand or after the provider refused a request that the estimate allowed. `text_tokens` estimates a text,
    `request_tokens` a request.
    `organization_id` decides which summary models may be used. `on_call` receives every call of a model.
    """

    organization_id: str
    settings: CompactionSettings
    llm_request: LlmRequest
    messages: Sequence[Message]
    turn_start: int
    sizes: Sizes
    client: LlmClient
    text_tokens: Callable[[str], int]
    request_tokens: Callable[[LlmRequest], int]
    agent_id: str
    conversation_id: str
    on_call: Callable[[SummaryCall], None]
    min_gain: int | None = None
    memory_access: MemoryAccess | None = None
    """The scopes of memories; None for the agent's, without those of senders and groups."""

    @property
    def memory(self) -> MemoryAccess:
        """The scopes of memories."""
        return self.memory_access or memory_access(self.agent_id, self.settings.memory_scope, None)


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """A request to summarize the messages that leave at `cut`, by `mode`, in at most `tokens` tokens."""

    compaction: CompactionRequest
    cut: Cut
    mode: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary: `window_text` is for the head of the window, `text` for display.

    `commits` are memories to store before the window is replaced.
    """

    window_text: str
    text: str
    commits: tuple[EpisodeCommit, ...] = ()


class SummaryFailed(Exception):
    """A summarizer failed. `is_down` is true if its model does not answer at all."""

    def __init__(self, message: str, *, is_down: bool = False) -> None:
        super().__init__(message)
        self.is_down = is_down


class Summarizer(Protocol):
    """One way to summarize the messages that leave a window. Has no effect."""

    async def summarize(self, request: SummaryRequest, down: set[str]) -> Summary:
        """Returns a summary of any length.

        `down` holds the handles of models that did not answer a moment ago and must not be called.

        Raises:
            SummaryFailed: there is no usable summary. `down` gains the models that did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The result of a compaction request: the messages that leave, and the summary that replaces them."""

    cut: Cut
    summary: Summary
    mode: str
    """The mode that wrote the summary, or "digest"."""
