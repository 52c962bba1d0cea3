"""Archival memory, as the orchestrator uses it."""

from dataclasses import dataclass
from datetime import datetime


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
