"""Work on the vector index that SQL has recorded and that must be finished, whoever dies meanwhile.

An operation is written in the transaction that decides its effect, and removed in the one that settles it. Between
the two it may be carried out any number of times: each is idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from mnemesh_archival.model.passages import Passage, PassageChange


@dataclass(frozen=True, slots=True)
class InsertPoints:
    """Put passages into the index where they are not there yet."""

    id: str
    organization_id: str
    embedder: str
    passages: tuple[Passage, ...]
    point_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class UpdatePoint:
    """Give a passage that is there new values."""

    id: str
    organization_id: str
    embedder: str
    passage_id: str
    point_id: UUID
    change: PassageChange
    archive_id: str = ""


@dataclass(frozen=True, slots=True)
class DeletePoints:
    """Take passages out of the index."""

    id: str
    organization_id: str
    embedder: str
    point_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class DropArchive:
    """Take all passages of an archive out of one embedder's collection."""

    id: str
    organization_id: str
    embedder: str
    archive_id: str


Operation = InsertPoints | UpdatePoint | DeletePoints | DropArchive


def point_of(passage_id: str) -> UUID:
    """The point id that a passage has unless another organization brought the same id."""
    return UUID(passage_id.removeprefix("passage-"))
