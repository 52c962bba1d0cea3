"""The values of the outbox: changes, claims and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.index import Payload


class ChangeKind(StrEnum):
    """The kind of subject of a change."""

    RECORD = "record"
    """One record was stored, changed or deleted."""
    GROUP = "group"
    """All records of a group were deleted, and none of them is ever stored again."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the outbox: the index may differ from a record, or from all records of a group."""

    row_id: int
    collection: str
    """The key of the collection, as the service registered it."""
    kind: ChangeKind
    subject_id: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one replica to apply changes, until a time. Other replicas leave them alone until then."""

    instance_id: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """The current state of a record, as the index should have it."""

    text: str
    """The text to embed."""
    payload: Payload = field(default_factory=dict)
    words: str = ""
    """The text that words are matched against, in an index with words."""
    vector: Vector | None = None
    """A vector of `text` that the collection's embedder made earlier: the text is not embedded again."""
