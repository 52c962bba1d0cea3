"""Operations: changes to the vector index that SQL has recorded and that must be applied, whatever process crashes.

An operation is recorded in the transaction that decides its effect, and removed in the transaction that settles it.
In between it may run any number of times: every operation is idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from mnemesh_archival.model.passages import Passage, PassageChange


@dataclass(frozen=True, slots=True)
class InsertPoints:
    """Inserts passages into the index unless they are there."""

    id: str
    organization_id: str
    embedder: str
    passages: tuple[Passage, ...]
    point_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class UpdatePoint:
    """Sets new values of a passage if it is in the index."""

    id: str
    organization_id: str
    embedder: str
    passage_id: str
    point_id: UUID
    change: PassageChange
    archive_id: str = ""


@dataclass(frozen=True, slots=True)
class DeletePoints:
    """Deletes passages from the index."""

    id: str
    organization_id: str
    embedder: str
    point_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class DropArchive:
    """Deletes all passages of an archive from the collection of one embedder."""

    id: str
    organization_id: str
    embedder: str
    archive_id: str


Operation = InsertPoints | UpdatePoint | DeletePoints | DropArchive


def point_of(passage_id: str) -> UUID:
    """Returns the point id of a passage, unless another organization imported the same passage id first."""
    return UUID(passage_id.removeprefix("passage-"))
