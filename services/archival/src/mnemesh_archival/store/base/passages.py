"""The Protocol of the store of passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_retrieval.indexing.records import Change, Claim

from mnemesh_archival.model.inserts import InsertEntry, InsertTarget
from mnemesh_archival.model.passages import Passage, PassageChange, PassageFilter, PassagePosition


@dataclass(frozen=True, slots=True)
class PassageScope:
    """The passages that a search or a list covers."""

    organization_id: str
    archive_ids: tuple[str, ...] | None
    """None for all archives of the organization."""
    filter: PassageFilter
    embedder: str | None = None
    """Only archives with this embedder; None for any."""

    def admits(self, passage: Passage) -> bool:
        """Returns whether a passage of the organization is in the scope, whatever the embedder."""
        inside = self.archive_ids is None or passage.archive_id in self.archive_ids
        return inside and self.filter.admits(passage)


@dataclass(frozen=True, slots=True)
class DefaultArchive:
    """The values of an agent's default archive, in case it must be created."""

    embedder: str
    dimension: int
    subject_id: str


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """A batch of passages to store."""

    target: InsertTarget
    default: DefaultArchive
    passages: tuple[Passage | None, ...]
    """None at the indexes of invalid passages. `archive_id` is empty."""
    caller_ids: frozenset[str]
    """The ids that the caller supplied. One that is taken is an error; one of ours is a replay."""


@dataclass(frozen=True, slots=True)
class StoredInsert:
    """The result of storing a batch."""

    entries: tuple[InsertEntry, ...]
    """One for each passage of the batch, in order."""
    new: tuple[Passage, ...]
    """The passages that this call stored; none on a replay."""
    changes: tuple[Change, ...]
    """The changes that remain to be applied to the index."""


@dataclass(frozen=True, slots=True)
class PassagePoint:
    """The point of a passage in the vector index."""

    embedder: str
    point_id: UUID


class PassageStore(Protocol):
    """Passages: the record, from which the vector index is derived.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing. A mutation
    is one transaction: the passages, the counters of their archive, the idempotency key, and the changes that the index
    must follow. `claim` reserves these changes for the caller, who applies them.

    Example:
        >>> stored = await store.insert("org-1", batch, key, claim)
        >>> await indexer.apply(stored.changes)
        >>> await store.get("org-1", [stored.new[0].id])
        {'passage-…': Passage(…)}
    """

    async def insert(
        self, organization_id: str, batch: InsertBatch, key: RequestKey | None, claim: Claim | None
    ) -> StoredInsert:
        """Stores a batch of passages, and creates the agent's default archive if needed.

        A passage whose id is known, live or deleted, is never stored again.

        Raises:
            ArchiveNotFound, AgentErased: the target cannot be written to.
            PassageExists: the ids of all passages are taken.
        """

    async def update(
        self,
        organization_id: str,
        passage_id: str,
        change: PassageChange,
        key: RequestKey | None,
        claim: Claim | None,
    ) -> tuple[Change, ...]:
        """Sets new values of a passage. Returns the changes for the index.

        Raises:
            PassageNotFound: the passage does not exist.
        """

    async def delete(
        self, organization_id: str, passage_id: str, key: RequestKey | None, claim: Claim | None
    ) -> tuple[Change, ...]:
        """Replaces a passage by a tombstone. Returns the changes for the index. Deleting it again is not an error.

        Raises:
            PassageNotFound: the passage never existed.
        """

    async def get(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, Passage]:
        """Returns the existing ones of these passages, by id."""

    async def points(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassagePoint]:
        """Returns the points of the existing ones of these passages, by id."""

    async def list_page(
        self, scope: PassageScope, page: PageQuery, *, words: str = "", bytes_each: int = 0
    ) -> Page[Passage]:
        """Returns a page of passages by creation time, ties by id, bounded by rows and by bytes.

        Args:
            scope: the passages to list.
            page: the page. `after_id` and `before_id` may name deleted passages.
            words: words that a passage must all contain; empty for no condition.
            bytes_each: what the caller adds to each passage, in bytes.

        Raises:
            NotFound: `after_id` or `before_id` is not a passage of the organization.
        """

    async def resolve(self, scope: PassageScope, point_ids: Sequence[UUID]) -> dict[UUID, Passage]:
        """Returns the passages of these points that exist and are in the scope."""

    async def matching(self, scope: PassageScope, point_ids: Sequence[UUID]) -> set[UUID]:
        """Returns those of the points whose passages exist and are in the scope."""

    async def neighbours(self, organization_id: str, point_ids: Sequence[UUID], reach: int) -> list[PassagePosition]:
        """Returns the positions of these passages and of up to `reach` before and after each.

        Neighbours are those in the insertion order of the same archive. The result is in no particular order.
        """

    async def newest_sizes(self, scope: PassageScope, limit: int) -> list[tuple[str, int]]:
        """Returns the points, as text, and the sizes in bytes of the newest passages of the scope, in no order."""

    async def texts(self, point_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Returns points, as text, and texts of passages that other methods returned; a deleted one has none."""

    async def purge_requests(self) -> int:
        """Deletes idempotency keys that are older than promised. Returns their number."""

    async def purge_tombstones(self, older_than: datetime) -> int:
        """Deletes tombstones of passages that were deleted before this time. Returns their number."""
