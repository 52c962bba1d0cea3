"""Searches of passages: kinds, bounds and hits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mnemesh_archival.model.passages import Passage

MAX_QUERY_LENGTH: Final = 10_000

MAX_HITS: Final = 100

DEFAULT_HITS: Final = 10


class SearchKind(Enum):
    """By words, by meaning, or both."""

    HYBRID = "hybrid"
    TEXT = "text"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A passage that was found, with its place in each list that holds it."""

    passage: Passage
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
