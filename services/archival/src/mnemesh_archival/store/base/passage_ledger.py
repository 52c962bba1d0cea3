"""The Protocol of the ledger of passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from mnemesh_kit.idempotency import RequestKey
from mnemesh_retrieval.index import Position

from mnemesh_archival.model.inserts import InsertEntry, InsertTarget
from mnemesh_archival.model.operations import InsertPoints, Operation, UpdatePoint
from mnemesh_archival.model.passages import Passage, PassageChange, PassagePosition


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """The archive that an insert goes to. `archive_id` is None if the agent's default archive does not exist yet."""

    archive_id: str | None
    embedder: str
    is_replay: bool
    """True if the request took effect before."""


@dataclass(frozen=True, slots=True)
class DefaultArchive:
    """The values of an agent's default archive, in case it must be created."""

    embedder: str
    dimension: int
    subject_id: str


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """A batch of passages to record."""

    operation_id: str
    target: InsertTarget
    embedder: str
    """The embedder of the vectors; the archive must still have it."""
    default: DefaultArchive
    passages: tuple[Passage | None, ...]
    """None at the indexes of invalid passages. `archive_id` is empty."""
    caller_ids: frozenset[str]
    """The ids that the caller supplied. One that is taken is an error; one of ours is a replay."""


@dataclass(frozen=True, slots=True)
class RecordedInsert:
    """The result of recording a batch."""

    entries: tuple[InsertEntry, ...]
    """One for each passage of the batch, in order."""
    operation: InsertPoints | None
    """The operation that remains to be run, if any."""
    replayed: bool


@dataclass(frozen=True, slots=True)
class PassageRow:
    """The ledger's row of a live passage."""

    id: str
    archive_id: str
    embedder: str
    point_id: UUID
    created_at: datetime


class PassageLedger(Protocol):
    """The rows of passages, and the operations that remain to be run on the index.

    Example:
        >>> recorded = await ledger.record_insert("org-1", batch, key)
        >>> ...  # insert the passages into the index
        >>> await ledger.settle_insert(recorded.operation)
    """

    async def resolve_target(
        self, organization_id: str, target: InsertTarget, default_embedder: str, key: RequestKey | None
    ) -> ResolvedTarget:
        """Returns the archive that an insert would go to, so that its texts can be embedded first.

        Raises:
            ArchiveNotFound, AgentErased: the target cannot be written to.
        """

    async def record_insert(self, organization_id: str, batch: InsertBatch, key: RequestKey | None) -> RecordedInsert:
        """Records a batch and its operation in one transaction, and creates the agent's default archive if needed.

        A passage whose id is known, live or deleted, is never recorded again. A replay returns the first entries, and
        the operation if it has not been settled.

        Raises:
            ArchiveNotFound, AgentErased: the target cannot be written to.
            ArchiveReembedding: the archive has another embedder now, or is switching to it.
            PassageExists: the ids of all passages are taken.
        """

    async def settle_insert(self, operation: InsertPoints) -> Operation | None:
        """Marks pending passages as live and counts them, once; removes the operation.

        Returns:
            An operation that deletes the passages that were deleted meanwhile, if any.
        """

    async def find(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassageRow]:
        """Returns the rows of the live ones among these passages, by id."""

    async def list_position(self, organization_id: str, passage_id: str) -> Position:
        """Returns the position of a passage in lists, also of a deleted one. Raises PassageNotFound."""

    async def neighbours(self, organization_id: str, point_ids: Sequence[UUID], reach: int) -> list[PassagePosition]:
        """Returns the positions of these passages and of up to `reach` live ones before and after each.

        Neighbours are those in the insertion order of the same archive. The result is in no particular order.
        """

    async def record_update(
        self, organization_id: str, operation_id: str, known: PassageRow, change: PassageChange, key: RequestKey | None
    ) -> UpdatePoint | None:
        """Records new values of a passage. Returns the operation to run; None on a replay.

        Raises:
            PassageNotFound: the passage is not live.
            PassageBusy: another update of it has not been settled.
            ArchiveReembedding: the archive has another embedder than `known`, or is switching to it.
        """

    async def unfinished_update(self, organization_id: str, passage_id: str) -> Operation | None:
        """Returns the update of a passage that has not been settled, if any."""

    async def record_delete(
        self, organization_id: str, operation_id: str, passage_id: str, key: RequestKey | None
    ) -> tuple[Operation, ...]:
        """Replaces a passage by a tombstone. Returns the operations to run. Deleting it again is not an error.

        Raises:
            PassageNotFound: the passage never existed.
        """

    async def settle(self, operation: Operation) -> None:
        """Removes an operation that was run. Removing it again is not an error."""

    async def claim_unsettled(self, *, everything: bool, limit: int = 100) -> list[Operation]:
        """Claims operations whose claim has expired (or all, with `everything`), oldest first."""

    async def is_reembedding(self, organization_id: str, archive_id: str) -> bool:
        """Returns whether the archive's embedder is being changed."""

    async def purge_requests(self) -> int:
        """Deletes idempotency keys that are older than promised. Returns their number."""

    async def purge_tombstones(self, older_than: datetime) -> int:
        """Deletes tombstones of passages that were deleted before this time. Returns their number."""
