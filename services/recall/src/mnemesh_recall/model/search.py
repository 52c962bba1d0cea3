"""Searches of messages: the query, the scope, and the hits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mnemesh_types.messages import Message, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """The messages that a search considers. A condition that is None or empty does not apply."""

    agent_id: str | None = None
    conversation_id: str | None = None
    roles: tuple[Role, ...] = ()
    from_time: datetime | None = None
    """Inclusive."""
    before_time: datetime | None = None
    """Exclusive."""
    exclude_ids: tuple[str, ...] = ()


class SearchMode(StrEnum):
    """The indexes that a search uses."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSearch:
    """A search of messages. A blank query lists the newest ones."""

    query: str
    mode: SearchMode
    limit: int
    scope: SearchScope


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageHit:
    """A message that was found. Ranks start at 1. `mode` is None in a list of the newest messages."""

    message: Message
    text: str
    score: float = 0.0
    vector_rank: int | None = None
    text_rank: int | None = None
    mode: SearchMode | None = None


@dataclass(frozen=True, slots=True)
class MessageHits:
    """The result of a search, best first."""

    hits: tuple[MessageHit, ...]
    degraded: bool = False
    """True if similar messages may be missing, because the vector index or the embedder was not available."""
