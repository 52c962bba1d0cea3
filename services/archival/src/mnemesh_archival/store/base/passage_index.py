"""The Protocol of the vector index of passages, which is derived from the record in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol
from uuid import UUID

from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.index import Candidates, SearchMode
from mnemesh_retrieval.indexing.records import Change, Claim

from mnemesh_archival.store.base.passages import PassageScope

APPLY_SECONDS: Final = 5.0
"""How long a write waits for the index and the embedder. The record is durable, so the index may follow later."""


class PassageIndex(Protocol):
    """Passages in the vector index, in one collection per embedder.

    Example:
        >>> stored = await store.insert("org-1", batch, key, index.claim())
        >>> await index.apply(stored.changes)
        True
        >>> await index.candidates(scope, mode=SearchMode.TEXT, text="oak", vector=None, limit=10)
        Candidates(…)
    """

    def claim(self) -> Claim | None:
        """Returns the claim for changes that this process applies at once; None if no other process could."""

    async def apply(self, changes: Sequence[Change], within: float | None = APPLY_SECONDS) -> bool:
        """Applies changes, so that searches see them.

        Args:
            changes: the changes.
            within: the time limit in seconds, shortened by the deadline of the caller; None for no limit of its own.

        Returns:
            Whether all were applied. The others follow in the background.
        """

    def notify(self) -> None:
        """Makes the background apply changes soon."""

    async def behind(self, embedder: str, limit: int) -> Sequence[UUID] | None:
        """Returns the passages whose changes the collection has not; usually none.

        They are the newest `limit` ones. None if the collection lacks others, too, because it is being rebuilt or
        cannot be used.
        """

    async def candidates(
        self, scope: PassageScope, *, mode: SearchMode, text: str, vector: Vector | None, limit: int
    ) -> Candidates:
        """Returns the best passages by words and the best by vector similarity, up to `limit` each.

        The scope names the embedder. Candidates may have been deleted or changed since.

        Raises:
            VectorIndexUnavailable: the index cannot be used now.
        """

    async def similarities(self, scope: PassageScope, vector: Vector, point_ids: Sequence[UUID]) -> dict[UUID, float]:
        """Returns the similarities of those points that have a vector; none if the index cannot be used now.

        The scope names the embedder. Points that its filter excludes have none.
        """

    async def vectors(self, embedder: str, point_ids: Sequence[UUID]) -> dict[UUID, tuple[float, ...]]:
        """Returns the vectors of those points that have one; none if the index cannot be used now."""
