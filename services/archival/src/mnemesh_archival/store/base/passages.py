"""The Protocol of the store of passages in the vector index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.index import Candidates, Position, SearchMode

from mnemesh_archival.model.passages import (
    Passage,
    PassageChange,
    PassageFilter,
)


@dataclass(frozen=True, slots=True)
class PassageScope:
    """The passages that a search or a list covers."""

    embedder: str
    organization_id: str
    archive_ids: tuple[str, ...] | None
    """None for all archives of the organization that have this embedder."""
    filter: PassageFilter


class PassageStore(Protocol):
    """Passages in the vector index, in one collection per embedder. Every write is idempotent.

    All methods raise VectorIndexUnavailable if the server of the index does not answer.

    Example:
        >>> await store.insert("mnemesh/wordllama-256", "org-1", [(point_id, passage)], [vector])
        >>> await store.get("mnemesh/wordllama-256", [point_id], with_embedding=False)
        {UUID('…'): Passage(…)}
    """

    async def insert(
        self,
        embedder: str,
        organization_id: str,
        pairs: Sequence[tuple[UUID, Passage]],
        vectors: Sequence[Vector | None],
        *,
        replace: bool = False,
    ) -> None:
        """Stores passages that are absent, and with `replace` also those that are present.

        A passage with None as its vector is found by words only.
        """

    async def update(self, embedder: str, point_id: UUID, change: PassageChange, vector: Vector | None) -> None:
        """Changes a passage if it is present. `vector` is that of a changed text."""

    async def delete(self, embedder: str, point_ids: Sequence[UUID]) -> None:
        """Deletes passages."""

    async def drop_archive(self, embedder: str, organization_id: str, archive_id: str) -> None:
        """Deletes all passages of an archive."""

    async def point_ids(
        self, embedder: str, organization_id: str, archive_id: str, *, after: UUID | None, limit: int
    ) -> Sequence[UUID]:
        """Returns the points of an archive, by id, after the id `after`."""

    async def get(self, embedder: str, point_ids: Sequence[UUID], *, with_embedding: bool) -> dict[UUID, Passage]:
        """Returns the passages that are present."""

    async def candidates(
        self, scope: PassageScope, *, mode: SearchMode, text: str, vector: Vector | None, limit: int
    ) -> Candidates:
        """Returns the best passages by words and the best by vector similarity, up to `limit` each."""

    async def matching(self, scope: PassageScope, point_ids: Sequence[UUID]) -> set[UUID]:
        """Returns the points among these that are in the scope."""

    async def list(
        self,
        scope: PassageScope,
        *,
        words: str | None,
        ascending: bool,
        after: Position | None,
        before: Position | None,
        limit: int,
    ) -> list[tuple[Position, Passage]]:
        """Returns passages by creation time, ties by point id; only those that contain all of `words`."""
