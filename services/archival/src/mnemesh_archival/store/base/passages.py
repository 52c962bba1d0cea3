"""The Protocol of the store of passages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_retrieval.indexing.records import Change, Claim

from mnemesh_archival.model.continuity import Continuity
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
    continuity: Continuity = Continuity.AUTOMATIC
    """AUTOMATIC, CONTINUOUS or SEPARATE."""
    restores: bool = False
    """Whether passages of the archive may exist, as those of an import that is repeated."""


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


class Equals(NamedTuple):
    """A condition: the passages with a fingerprint; see mnemesh_retrieval.ranking.texts."""

    fingerprint: str
    limit: int
    """The number of passages that are looked at."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Passages and those around them."""

    positions: Sequence[PassagePosition]
    """In no particular order."""
    questions: Mapping[UUID, str]
    """The texts of those that ask a question."""
    equal: Mapping[UUID, str]
    """The texts of the passages with the fingerprint."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The passages around one in its dialogue or document, in insertion order."""

    before: tuple[Passage, ...]
    after: tuple[Passage, ...]


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

    async def delete_many(
        self,
        organization_id: str,
        archive_id: str,
        selection: Sequence[str] | str,
        limit: int,
        key: RequestKey | None,
        claim: Claim | None,
    ) -> tuple[int, bool, tuple[Change, ...]]:
        """Deletes live passages of an archive.

        Args:
            organization_id: the organization.
            archive_id: the archive.
            selection: the ids of passages, or the id of a file.
            limit: the largest number of passages of a file that are deleted.
            key: the idempotency key.
            claim: as above.

        Returns:
            Their number, whether the file has more, and the changes for the index.

        Raises:
            ArchiveNotFound: the archive does not exist.
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
        self, scope: PassageScope, page: PageQuery, *, words: str = "", contains: str = "", bytes_each: int = 0
    ) -> Page[Passage]:
        """Returns a page of passages by creation time, ties by id, bounded by rows and by bytes.

        Args:
            scope: the passages to list.
            page: the page. `after_id` and `before_id` may name deleted passages.
            words: words that a passage must all contain; empty for no condition.
            contains: a text that a passage must contain, in any case; empty for no condition.
            bytes_each: what the caller adds to each passage, in bytes.

        Raises:
            NotFound: `after_id` or `before_id` is not a passage of the organization.
        """

    async def resolve(self, scope: PassageScope, point_ids: Sequence[UUID]) -> dict[UUID, Passage]:
        """Returns the passages of these points that exist and are in the scope."""

    async def matching(self, scope: PassageScope, point_ids: Sequence[UUID]) -> set[UUID]:
        """Returns those of the points whose passages exist and are in the scope."""

    async def neighbours(
        self, scope: PassageScope, point_ids: Sequence[UUID], reach: int, matched: Collection[UUID], equals: Equals
    ) -> Neighbourhood:
        """Returns the positions of passages, and of those before and after them in a dialogue or document.

        Args:
            scope: the organization, and the passages among which those with the fingerprint are searched.
            point_ids: the passages beside those with the fingerprint.
            reach: the largest distance in the insertion order of the archive.
            matched: the passages whose texts are returned if they belong to a dialogue or document and ask a question.
            equals: the fingerprint.
        """

    async def around(
        self, organization_id: str, passage_ids: Sequence[str], before: int, after: int
    ) -> dict[str, Surroundings]:
        """Returns the passages before and after each of these in its dialogue or document, up to these numbers.

        A passage that stands alone has none, and a passage that does not exist is missing from the result.
        """

    async def newest_sizes(self, scope: PassageScope, limit: int) -> list[tuple[str, int]]:
        """Returns the points, as text, and the sizes in bytes of the newest passages of the scope, in no order."""

    async def texts(self, point_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Returns points, as text, and texts of passages that other methods returned; a deleted one has none."""

    async def purge_requests(self) -> int:
        """Deletes idempotency keys that are older than promised. Returns their number."""

    async def purge_tombstones(self, older_than: datetime) -> int:
        """Deletes tombstones of passages that were deleted before this time. Returns their number."""
