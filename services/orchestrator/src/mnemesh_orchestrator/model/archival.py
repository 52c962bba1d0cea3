"""Archival memory, as the orchestrator sees it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ArchivalSummary:
    """How much an agent keeps in its archives."""

    revision: int = 0
    passage_count: int = 0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A found passage."""

    id: str
    text: str
    tags: tuple[str, ...]
    created_at: datetime
    score: float
    vector_rank: int | None = None
    text_rank: int | None = None
