"""Episodes and facts: the memories that recall keeps of messages that left the window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final


class ScopeKind(StrEnum):
    """The kind of owner of a memory."""

    AGENT = "agent"
    CONVERSATION = "conversation"
    GROUP = "group"
    IDENTITY = "identity"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of a memory. `id` is a free name for the kind NAME."""

    kind: ScopeKind
    id: str

    @property
    def key(self) -> str:
        """The scope as one string."""
        return f"{self.kind.value}:{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of a memory."""

    message_ids: tuple[str, ...] = ()
    agent_id: str | None = None
    conversation_id: str | None = None
    run_id: str | None = None
    episode_id: str | None = None
    model: str | None = None

    def merged(self, other: Source) -> Source:
        """Returns this source with the messages of both, and with the other fields of `other` that it lacks."""
        return Source(
            message_ids=tuple(dict.fromkeys((*self.message_ids, *other.message_ids))),
            agent_id=self.agent_id or other.agent_id,
            conversation_id=self.conversation_id or other.conversation_id,
            run_id=self.run_id or other.run_id,
            episode_id=self.episode_id or other.episode_id,
            model=self.model or other.model,
        )


UNKNOWN_SOURCE: Final = Source()


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A summary of some turns. `imported_id` is its id in the trace file that it was imported from."""

    id: str
    scope: Scope
    summary: str
    created_at: datetime
    updated_at: datetime
    turn_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    salience: float | None = None
    source: Source = UNKNOWN_SOURCE
    started_at: datetime | None = None
    ended_at: datetime | None = None
    metadata: str | None = None
    extra: str | None = None
    imported_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A statement that is valid from `valid_from` (inclusive) to `invalid_at` (exclusive). None means no bound.

    `closed_at` is the time at which its end was learned: a query for knowledge before that time sees the fact end at
    `first_invalid_at`, as it was first written. `imported_id` is its id in the trace file that it was imported from.
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
    source: Source = UNKNOWN_SOURCE
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

    def is_valid(self, at: datetime) -> bool:
        """Returns whether the fact is valid at that time, by everything known today."""
        return (self.valid_from is None or self.valid_from <= at) and (self.invalid_at is None or self.invalid_at > at)

    def closed(self, *, invalid_at: datetime, now: datetime) -> Fact:
        """Returns the fact with an end. A fact that starts after its end was never valid."""
        end = invalid_at if self.valid_from is None else max(invalid_at, self.valid_from)
        return replace(self, invalid_at=end, closed_at=now, updated_at=now)
