"""The outbox of the vector index."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ChangeKind(StrEnum):
    """What an outbox row is about."""

    MESSAGE = "message"
    MEMORY = "memory"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """News for the vector index: a message, an episode or a fact, or all of an agent, may differ from what it holds."""

    row_id: int
    kind: ChangeKind
    subject_id: str
    created_at: datetime
