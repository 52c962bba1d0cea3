"""The Protocol of the records from which the vector index is derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class IndexedPassage:
    """The part of a passage that the index has: its text, and the fields by which searches filter."""

    text: str
    organization_id: str
    archive_id: str
    tags: tuple[str, ...]
    source: str
    agent_id: str | None
    file_id: str | None
    folder_id: str | None
    created_at: datetime
    given_vector: bytes | None = None
    """The vector that came with the passage, if the embedder of the collection made it; see model/given_vectors.py."""


class IndexRecords(Protocol):
    """The passages of all organizations, by collection.

    A collection has the passages of the archives that have its embedder, or are changing to it.
    """

    async def embedders(self) -> dict[str, int]:
        """Returns the embedders of all archives, old and new ones of a change included, with their dimensions."""

    async def pending_collections(self) -> Sequence[str]:
        """Returns the collections that the outbox or a collection that an archive has left names."""

    async def read(self, embedder: str, point_ids: Sequence[UUID]) -> Mapping[UUID, IndexedPassage]:
        """Returns the passages of these points that belong to the collection."""

    async def page(self, embedder: str, after: UUID | None, limit: int) -> Sequence[UUID]:
        """Returns the points of the collection's passages in order, after the point `after`.

        Those that a change of embedder has not reached yet are not among them.
        """

    async def existing(self, embedder: str, point_ids: Sequence[UUID]) -> set[UUID]:
        """Returns those of the points whose passages belong to the collection."""

    async def count(self, embedder: str) -> int:
        """Returns the number of passages of the collection, without those that a change of embedder has not reached."""
