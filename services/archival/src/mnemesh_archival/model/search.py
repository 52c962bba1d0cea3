"""Searches of passages: kinds, limits and hits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_text

from mnemesh_archival.model.passages import Passage

MAX_QUERY_CHARS: Final = 10_000
MAX_HITS: Final = 100
DEFAULT_HITS: Final = 10


class SearchKind(Enum):
    """Search by words (TEXT), by vector similarity (VECTOR), or both."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A passage that a search found. Ranks count from 1; None means that the passage is not in that list."""

    passage: Passage
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits of a search, best first."""

    hits: tuple[PassageHit, ...]
    degraded: bool = False
    """True if an embedder was unavailable, so that a hybrid search used words only, or if the index was incomplete."""
    next_offset: int | None = None
    """The number of hits up to here, if others are left out because of their size."""


def validate_query(text: str, field: str) -> str:
    """Returns the query. Raises InvalidArgument if it is too long or has a NUL character."""
    return require_text(text, field, max_chars=MAX_QUERY_CHARS)


def validate_limit(limit: int) -> int:
    """Returns the number of hits to return, with 0 replaced by the default.

    Raises:
        InvalidArgument: the limit is negative or too large.
    """
    if not 0 <= limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    return limit or DEFAULT_HITS
