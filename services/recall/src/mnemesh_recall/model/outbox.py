"""The outbox of the vector index: changes that the index has not seen yet."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from mnemesh_types.messages import Message


class ChangeKind(StrEnum):
    """The subject of a change."""

    MESSAGE = "message"
    MEMORY = "memory"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A pending change: one message, one episode or fact, or all messages of an agent may differ from the index."""

    row_id: int
    kind: ChangeKind
    subject_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PendingChanges:
    """The oldest pending changes, with the searchable messages that they name.

    `messages` maps a message id to the organization and the message. A message without an entry is deleted or has no
    searchable text.
    """

    rows: tuple[OutboxRow, ...]
    messages: dict[str, tuple[str, Message]]
