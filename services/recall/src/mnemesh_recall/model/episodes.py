"""What recall keeps of messages that left the window: episodes, and facts with the time for which they hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final


class ScopeKind(StrEnum):
    """Whom a memory concerns."""

    AGENT = "agent"
    CONVERSATION = "conversation"
    GROUP = "group"
    IDENTITY = "identity"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Scope:
    """One of them; `id` is a name where the kind is NAME."""

    kind: ScopeKind
    id: str

    @property
    def key(self) -> str:
        """The scope as one string."""
        return f"{self.kind.value}:{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a memory was learned."""

    message_ids: tuple[str, ...] = ()
    agent_id: str | None = None
    conversation_id: str | None = None
    run_id: str | None = None
    episode_id: str | None = None
    model: str | None = None

    def joined(self, more: Source) -> Source:
        """This source with the messages of another, and what else only the other says."""
        return Source(
            message_ids=tuple(dict.fromkeys((*self.message_ids, *more.message_ids))),
            agent_id=self.agent_id or more.agent_id,
            conversation_id=self.conversation_id or more.conversation_id,
            run_id=self.run_id or more.run_id,
            episode_id=self.episode_id or more.episode_id,
            model=self.model or more.model,
        )


NOWHERE: Final = Source()
"""Nothing is said of where it was learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A summary of some turns. `imported_id` is what a trace file calls it."""

    id: str
    scope: Scope
    summary: str
    created_at: datetime
    updated_at: datetime
    turn_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    salience: float | None = None
    source: Source = NOWHERE
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: str | None = None
    extra: str | None = None
    imported_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something held to be true from `valid_from`, included, to `invalid_at`, not included; None has no bound.

    `closed_at` is when it was learned that it ends: asked for what was known before, it still ends at
    `first_invalid_at`, as it was first written. `imported_id` is what a trace file calls it.
    """

    id: str
    scope: Scope
    text: str
    created_at: datetime
    updated_at: datetime
    chain_id: str
    tags: tuple[str, ...] = ()
    confidence: float | None = None
    salience: float | None = None
    source: Source = NOWHERE
    metadata: str | None = None
    extra: str | None = None
    valid_from: datetime | None = None
    invalid_at: datetime | None = None
    first_invalid_at: datetime | None = None
    closed_at: datetime | None = None
    superseded_by_id: str | None = None
    supersedes_id: str | None = None
    invalid_reason: str | None = None
    invalid_source: Source | None = None
    imported_id: str | None = None

    def holds(self, now: datetime) -> bool:
        """Whether it is true at that moment, by all that is known."""
        return (self.valid_from is None or self.valid_from <= now) and (
            self.invalid_at is None or self.invalid_at > now
        )

    def closed(self, *, invalid_at: datetime, now: datetime) -> Fact:
        """The fact with an end; one that starts later than it ends never held."""
        end = invalid_at if self.valid_from is None else max(invalid_at, self.valid_from)
        return replace(self, invalid_at=end, closed_at=now, updated_at=now)


def text_key(text: str) -> str:
    """Equal for texts that differ in case and spaces only."""
    return hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:32]
