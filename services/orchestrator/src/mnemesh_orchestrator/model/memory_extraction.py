"""The extraction of facts from messages without a compaction: its settings, its progress and its results."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_optional_text
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.model.episodes import Change, EpisodeCommit
from mnemesh_orchestrator.model.models import ModelSettings, require_handle, require_valid_settings

MAX_FREQUENCY: Final = 1_000
MAX_CALLS_PER_DAY: Final = 1_000_000
DEFAULT_CALLS: Final = 10
MAX_CALLS: Final = 100
_MAX_PROMPT: Final = 100_000


class ExtractionMode(StrEnum):
    """When facts are extracted."""

    ON_DEMAND = "on_demand"
    PER_TURN = "per_turn"


class ExtractionScope(StrEnum):
    """Where facts are stored."""

    AGENT = "agent"
    SENDER = "sender"


@dataclass(frozen=True, slots=True)
class MemoryExtractionSettings:
    """The settings of an agent. None takes the default."""

    mode: ExtractionMode = ExtractionMode.ON_DEMAND
    frequency: int | None = None
    model: str | None = None
    model_settings: ModelSettings | None = None
    prompt: str | None = None
    scope: ExtractionScope = ExtractionScope.AGENT
    max_calls_per_day: int | None = None

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
