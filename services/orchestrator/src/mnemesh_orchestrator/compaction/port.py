"""What a compaction is asked for and what it gives: the ports between the loop, the compactor, and who writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mnemesh_types.messages import Message

from mnemesh_orchestrator.compaction.planner import Plan, Sizes
from mnemesh_orchestrator.llm.port import LlmClient, LlmRequest
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.models import ModelInfo


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A window that is to be made smaller.

    `request` is what the model would be asked next, whole, with the window's
    messages at its head; `messages` are those, the system message first.
    `current` starts the turn that is under way. `sizes.trigger` and `.limit`
    are this time's. What leaves must take at least `least_gain` tokens; None
    says that any gain will do, as where somebody asked for it, or where the
    provider refused what the estimate let pass. `tokens` estimates a text,
    `measure` a request. Summarisers are those that `organization_id` may use.
    """

    organization_id: str
    settings: CompactionSettings
    request: LlmRequest
    messages: Sequence[Message]
    current: int
    sizes: Sizes
    client: LlmClient
    tokens: Callable[[str], int]
    measure: Callable[[LlmRequest], int]
    agent_id: str
    conversation_id: str
    least_gain: int | None = None


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a writer is to put into words: what leaves by `plan`, in the words of `mode`, for `tokens` at most."""

    occasion: CompactionRequest
    plan: Plan
    mode: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What stands at the head of the new window: `text` for the model, `summary` for whoever asks.

    `commits` are memories that are to be kept before the window is replaced.
    """

    text: str
    summary: str
    commits: tuple[EpisodeCommit, ...] = ()


class SummaryFailed(Exception):
    """A writer could not write. `is_down` says that its model does not answer at all at the moment."""

    def __init__(self, why: str, *, is_down: bool = False) -> None:
        super().__init__(why)
        self.is_down = is_down


class Summarizer(Protocol):
    """One way to put what leaves a window into words. Has no effect."""

    async def write(self, task: SummaryRequest, down: set[str]) -> Summary:
        """The words, of any length.

        `down` are handles of models not to be asked, because they did not answer a moment ago.

        Raises:
            SummaryFailed: nothing can be used; `down` grows by what did not answer.
        """
        ...


class ModelCatalog(Protocol):
    """Where models are found."""

    async def resolve(self, organization_id: str, handle: str) -> tuple[ModelInfo, LlmClient]:
        """What is known of a model in an organization, and who asks it. Raises ModelUnknown."""
        ...


class OrganizationModels(Protocol):
    """What one organization may use."""

    def resolve(self, handle: str) -> tuple[ModelInfo, LlmClient]:
        """What is known of a model, and who asks it. Raises ModelUnknown."""
        ...


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What an occasion came to: who leaves, and the words in their place."""

    plan: Plan
    written: Summary
    by: str
    """The mode whose words they are, or "digest"."""


class Compactor(Protocol):
    """Makes windows smaller. Stores nothing."""

    async def compact(self, occasion: CompactionRequest) -> CompactionPlan | None:
        """What is to leave, and the words in its place; None where nothing can. Never fails for want of a model."""
        ...
