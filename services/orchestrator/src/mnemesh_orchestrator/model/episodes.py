"""Episodes and facts, the memory of turns that left a context window, and the passages of archival memory."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


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
class FactSource:
    """Where an agent corrects or withdraws a fact."""

    agent_id: str
    conversation_id: str | None = None
    run_id: str | None = None
    message_ids: tuple[str, ...] = ()


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
class ArchivalSummary:
    """The number of passages in the archives of an agent, and its revision."""

    revision: int = 0
    passage_count: int = 0
    tags: tuple[str, ...] = ()


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
