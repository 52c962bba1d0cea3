"""Episodes and facts, and the settings of their extraction."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_optional_text
from mnemesh_types import agents
from mnemesh_types.agents import ExtractionMode
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.models import require_handle, require_valid_settings


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """The scope of memories: at most one of the optional fields is set; without one, it is the agent's own.

    `agent_id` is the agent that the memories come from.
    """

    agent_id: str
    name: str | None = None
    identity_id: str | None = None
    group_id: str | None = None
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A summary of turns between `started_at` and `ended_at`. Salience ranges from 0 to 1."""

    id: str
    summary: str
    created_at: datetime
    tags: tuple[str, ...] = ()
    salience: float = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement that is valid from `valid_from` until `invalid_at`. None means without limit."""

    id: str
    text: str
    created_at: datetime
    tags: tuple[str, ...] = ()
    salience: float = 0.0
    valid_from: datetime | None = None
    invalid_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class MemoryHits:
    """Facts and episodes found by a search, best first."""

    facts: tuple[Fact, ...] = ()
    episodes: tuple[Episode, ...] = ()
    times: str | None = None
    """The words of the query that named a time, to which the facts were restricted."""
    is_knowledge: bool = False
    """Whether they named the time at which the facts were known, rather than the time at which they held."""


@dataclass(frozen=True, slots=True)
class MemoryBundle:
    """The latest episodes, oldest first, and the most salient facts that are valid."""

    episodes: tuple[Episode, ...] = ()
    facts: tuple[Fact, ...] = ()


class Change(StrEnum):
    """The effect of a statement on the known facts."""

    ADD = "add"
    SUPERSEDE = "supersede"
    CONFIRM = "confirm"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True)
class FactChange:
    """A statement and its evidence.

    `fact_id` is the fact that it supersedes, confirms or retracts. A retraction says that the fact holds no longer from
    `told_at` on, and states nothing in its place: `text` is the fact's. A statement that was contradicted before it was
    stored is valid from `told_at` until `ended_at`.
    """

    change: Change
    text: str
    message_ids: tuple[str, ...]
    told_at: datetime
    tags: tuple[str, ...] = ()
    confidence: float = 0.0
    salience: float = 0.0
    fact_id: str | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewEpisode:
    """A summary of messages and turns that is not stored yet."""

    summary: str
    message_ids: tuple[str, ...]
    turn_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    salience: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeCommit:
    """An episode, if any, and changes of facts, stored completely or not at all.

    `model` is the handle of the model that extracted it.
    """

    scope: MemoryScope
    conversation_id: str | None
    episode: NewEpisode | None
    changes: tuple[FactChange, ...] = ()
    model: str | None = None

    def without(self, fact_id: str) -> "EpisodeCommit":
        """Returns the commit for a fact that was closed meanwhile.

        A contradiction becomes a new fact. A confirmation or a retraction is left out.
        """
        changes = (
            replace(change, change=Change.ADD, fact_id=None) if change.fact_id == fact_id else change
            for change in self.changes
            if change.fact_id != fact_id or change.change is Change.SUPERSEDE
        )
        return replace(self, changes=tuple(changes))


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A passage found by a search, with the texts around it in its dialogue or document."""

    id: str
    text: str
    tags: tuple[str, ...]
    created_at: datetime
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


MAX_FREQUENCY: Final = 1_000
MAX_CALLS_PER_DAY: Final = 1_000_000
DEFAULT_CALLS: Final = 10
MAX_CALLS: Final = 100
_MAX_PROMPT: Final = 100_000


class MemoryExtractionSettings(agents.MemoryExtractionSettings):
    """The settings of an agent. None takes the default."""

    __slots__ = ()

    @property
    def turns(self) -> int | None:
        """The number of completed turns after which facts are extracted; None if no turn leads to it."""
        return (self.frequency or 1) if self.mode is ExtractionMode.PER_TURN else None


@dataclass(frozen=True, slots=True)
class ExtractionJob:
    """An agent whose messages are to be processed."""

    organization_id: str
    agent_id: str


@dataclass(frozen=True, slots=True)
class ExtractedRange:
    """What was extracted from the messages up to a sequence id, and is not known to be stored in recall yet."""

    until: int
    message_count: int
    commits: tuple[EpisodeCommit, ...]


@dataclass(frozen=True, slots=True)
class ExtractionClaim:
    """The exclusive right to process the messages of an agent.

    `processed` is the sequence id up to which they are processed. `failures` counts failures in a row. `due_before` is
    the time at which the agent was due before the claim; None if it was not.
    """

    job: ExtractionJob
    epoch: int
    processed: int
    failures: int = 0
    extracted: ExtractedRange | None = None
    due_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExtractionUsage:
    """The calls of an agent and the tokens of its organization on one day."""

    agent_calls: int = 0
    organization_tokens: int = 0


@dataclass(slots=True)
class ExtractionReport:
    """The progress of an extraction."""

    messages: int = 0
    calls: int = 0
    usage: Usage = Usage()
    has_more: bool = False
    budget_exhausted: bool = False
    changes: dict[Change, int] | None = None

    def add(self, extracted: ExtractedRange) -> None:
        """Counts a range that was stored."""
        counts = self.changes = self.changes or {}
        self.messages += extracted.message_count
        for commit in extracted.commits:
            for change in commit.changes:
                counts[change.change] = counts.get(change.change, 0) + 1

    def count(self, change: Change) -> int:
        """Returns the number of changes of a kind."""
        return (self.changes or {}).get(change, 0)


def require_valid_extraction(settings: MemoryExtractionSettings, field: str) -> MemoryExtractionSettings:
    """Returns the settings if each value is in its range. Raises InvalidArgument. Metadata: field."""
    if settings.frequency is not None and not 1 <= settings.frequency <= MAX_FREQUENCY:
        raise InvalidArgument(f"{field}.frequency must be between 1 and {MAX_FREQUENCY:,}.", field=f"{field}.frequency")
    calls = settings.max_calls_per_day
    if calls is not None and not 0 <= calls <= MAX_CALLS_PER_DAY:
        name = f"{field}.max_calls_per_day"
        raise InvalidArgument(f"{name} must be between 0 and {MAX_CALLS_PER_DAY:,}.", field=name)
    if settings.model is not None:
        require_handle(settings.model, f"{field}.model")
    require_optional_text(settings.prompt, f"{field}.prompt", max_chars=_MAX_PROMPT)
    if settings.model_settings is not None:
        require_valid_settings(settings.model_settings, f"{field}.model_settings")
    return settings


def require_calls(max_calls: int) -> int:
    """Returns the largest number of calls of one request. Raises InvalidArgument."""
    if not 0 <= max_calls <= MAX_CALLS:
        raise InvalidArgument(f"max_calls must be between 0 and {MAX_CALLS}.", field="max_calls")
    return max_calls or DEFAULT_CALLS
