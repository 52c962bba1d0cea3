"""Searches of messages: the query, the scope, and the hits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mnemesh_recall.model.messages import Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """Where a search looks."""

    organization_id: str
    agent_id: str | None = None
    conversation_id: str | None = None
    roles: tuple[Role, ...] = ()
    from_time: datetime | None = None
    """Inclusive."""
    before_time: datetime | None = None
    """Exclusive."""
    exclude_ids: tuple[str, ...] = ()


class SearchMode(StrEnum):
    """Which lists a search draws from."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSearch:
    """What to look for, and where."""

    query: str
    mode: SearchMode
    limit: int
    scope: SearchScope


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHit:
    """A message that was found; ranks count from 1. `mode` is None in a list of the newest."""

    message: Message
    text: str
    score: float = 0.0
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: SearchMode | None = None
