"""What callers ask of episodes and facts: the writes, the filters of lists, the bounds of searches, and results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Generic, TypeVar

from mnemesh_recall.model.episodes import NOWHERE, Episode, Fact, Scope, Source
from mnemesh_recall.model.search import SearchMode

M = TypeVar("M", Episode, Fact)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpisode:
    """An episode to be kept; its times are taken from its messages and turns where recall has any of them."""

    summary: str
    scope: Scope | None = None
    turn_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    salience: float | None = None
    source: Source = NOWHERE
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: str | None = None
    extra: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """A fact to be kept; what is None or empty is taken from elsewhere where the operation says so."""

    text: str
    scope: Scope | None = None
    tags: tuple[str, ...] = ()
    confidence: float | None = None
    salience: float | None = None
    source: Source = NOWHERE
    metadata: str | None = None
    extra: str | None = None
    valid_from: datetime | None = None
    invalid_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a fact, or confirms the one that holds and says the same."""

    fact: NewFact


@dataclass(frozen=True, slots=True)
class Supersede:
    """Closes a fact and puts another in its place."""

    fact_id: str
    fact: NewFact


@dataclass(frozen=True, slots=True)
class Invalidate:
    """Closes a fact; `invalid_at` None is now."""

    fact_id: str
    invalid_at: datetime | None = None
    reason: str | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Confirm:
    """Says that a fact still holds."""

    fact_id: str
    source: Source = NOWHERE
    confidence: float | None = None


Operation = Add | Supersede | Invalidate | Confirm


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCommit:
    """An episode and operations on facts, to be stored whole or not at all.

    `epoch` is that of the lease on `conversation_id`, None where an owner acts outside of a run.
    """

    scope: Scope | None = None
    episode: NewEpisode | None = None
    operations: tuple[Operation, ...] = ()
    conversation_id: str | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit came to: a fact for each operation, in order; those erased since a first call are left out."""

    episode: Episode | None
    facts: tuple[Fact, ...]


class EpisodeOrder(StrEnum):
    """What episodes are listed by."""

    CREATED = "created_at"
    STARTED = "started_at"
    SALIENCE = "salience"


class FactOrder(StrEnum):
    """What facts are listed by."""

    CREATED = "created_at"
    VALID_FROM = "valid_from"
    CONFIDENCE = "confidence"
    SALIENCE = "salience"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """Which episodes; what is None or empty does not narrow it."""

    scopes: tuple[Scope, ...] = ()
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    agent_id: str | None = None
    turn_id: str | None = None
    message_id: str | None = None
    known_at: datetime | None = None
    from_time: datetime | None = None
    """It ended then or later."""
    before_time: datetime | None = None
    """It started earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactFilter:
    """Which facts; what is None or empty does not narrow it, but for the two times, where None is now."""

    scopes: tuple[Scope, ...] = ()
    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    min_confidence: float | None = None
    episode_id: str | None = None
    message_id: str | None = None
    valid_at: datetime | None = None
    known_at: datetime | None = None
    include_invalid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySearch(Generic[M]):
    """What to look for, and where: an EpisodeFilter looks through episodes, a FactFilter through facts."""

    query: str
    mode: SearchMode
    limit: int
    where: EpisodeFilter | FactFilter


@dataclass(frozen=True, slots=True)
class MemoryHits(Generic[M]):
    """What was found with its scores, best first; `degraded` where meaning could not be searched."""

    hits: tuple[tuple[M, float], ...]
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class MemoryBundle:
    """The head of a compacted window: each part oldest first."""

    episodes: tuple[Episode, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class ScopeSummary:
    """How much a scope holds; the facts are those that hold now."""

    scope: Scope
    episode_count: int
    fact_count: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ScopeErasure:
    """What the erasure of a scope took away."""

    episodes: int
    facts: int


@dataclass(frozen=True, slots=True)
class MemoryText:
    """What the vector index learns of an episode or a fact."""

    id: str
    organization_id: str
    scope: Scope
    owner_agent_id: str | None
    text: str
