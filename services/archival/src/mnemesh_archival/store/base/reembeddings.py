"""The Protocol of the store of changes of embedders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ReembeddingJob:
    """A change of an archive's embedder that this process has claimed."""

    organization_id: str
    archive_id: str
    generation: int
    source: str
    """The embedder that serves."""
    target: str
    """The new embedder."""


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """A passage that must be copied to the new embedder's collection."""

    passage_id: str
    point_id: UUID
    changes: int
    """The number of updates so far; another number later means that the copy is outdated."""


class ReembeddingStore(Protocol):
    """Changes of embedders: the passages that are copied, and the switch to the copies.

    A change ends early if its archive is deleted or gets yet another embedder; `next_batch` and `switch` then report
    that it is over.

    Example:
        >>> for job in await store.claim(everything=False):
        ...     while batch := await store.next_batch(job, 64):
        ...         ...  # copy the passages
        ...         await store.mark_copied(job, batch)
        ...     await store.switch(job)
    """

    async def claim(self, *, everything: bool) -> list[ReembeddingJob]:
        """Claims changes whose claim has expired (or all, with `everything`) for 60 seconds, oldest first."""

    async def next_batch(self, job: ReembeddingJob, limit: int) -> list[PendingCopy] | None:
        """Returns passages to copy and renews the claim. Empty if there are none now; None if the change is over."""

    async def mark_copied(self, job: ReembeddingJob, copied: Sequence[PendingCopy]) -> list[UUID]:
        """Marks passages as copied, except those updated meanwhile. Returns the points of those deleted meanwhile."""

    async def orphaned_points(self, job: ReembeddingJob, point_ids: Sequence[UUID]) -> list[UUID]:
        """Returns the points that are not live passages of the archive."""

    async def pause_writers(self, job: ReembeddingJob, seconds: float) -> None:
        """Makes inserts and updates fail with ArchiveReembedding for this long, so that the last ones can be copied."""

    async def switch(self, job: ReembeddingJob) -> bool:
        """Switches the archive to the copies if no passage is left to copy. Returns whether the change is over."""

    async def release(self, job: ReembeddingJob, seconds: float) -> None:
        """Lets any process claim the change after this many seconds."""
