"""What remains of turns that left a window: episodes and facts, as recall keeps them and as they are put there."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class MemoryScope:
    """Whose memory it is: the agent's own, or one under a name that agents share."""

    agent_id: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """A summary of some turns, which went on from `started_at` to `ended_at`. Salience goes from 0 to 1."""

    id: str
    summary: str
    created_at: datetime
    tags: tuple[str, ...] = ()
    salience: float = 0.0
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement that holds from `valid_from` on, and until `invalid_at`; None says always, and still."""

    id: str
    text: str
    created_at: datetime
    tags: tuple[str, ...] = ()
    salience: float = 0.0
    valid_from: datetime | None = None
    invalid_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class MemoryHits:
    """Facts and episodes that were found, each best first."""

    facts: tuple[Fact, ...] = ()
    episodes: tuple[Episode, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryBundle:
    """The newest episodes, oldest first, and the most salient facts of those that hold."""

    episodes: tuple[Episode, ...] = ()
    facts: tuple[Fact, ...] = ()


class Change(StrEnum):
    """What a statement does to the facts that are known."""

    ADD = "add"
    SUPERSEDE = "supersede"
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class FactChange:
    """One statement and what it rests on. `fact_id` is the fact that it supersedes or confirms.

    What was contradicted before it was kept holds from `told_at` until `ended_at`.
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
    """A summary that is not kept yet, of these messages and turns."""

    summary: str
    message_ids: tuple[str, ...]
    turn_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    salience: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeCommit:
    """An episode and what it does to the facts: all of it is kept, or none. `model` is the handle of who drew it."""

    scope: MemoryScope
    conversation_id: str
    episode: NewEpisode
    changes: tuple[FactChange, ...] = ()
    model: str | None = None

    def without(self, fact_id: str) -> "EpisodeCommit":
        """For a fact that is closed by now: what contradicts it is new, what confirms it is left out."""
        changes = (
            replace(change, change=Change.ADD, fact_id=None) if change.fact_id == fact_id else change
            for change in self.changes
            if change.fact_id != fact_id or change.change is Change.SUPERSEDE
        )
        return replace(self, changes=tuple(changes))
