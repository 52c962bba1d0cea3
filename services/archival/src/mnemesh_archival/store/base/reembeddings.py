"""The Protocol of the store of changes of embedders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mnemesh_retrieval.indexing.records import Change, Claim


@dataclass(frozen=True, slots=True)
class ReembeddingJob:
    """A change of an archive's embedder that this process has claimed."""

    organization_id: str
    archive_id: str
    generation: int
    target: str
    """The new embedder."""


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Passages that must be indexed in the collection of the new embedder."""

    changes: tuple[Change, ...]
    """Empty if all passages have been copied."""
    position: int
    """The position of the last one."""


class ReembeddingStore(Protocol):
    """Changes of embedders, and the collections that archives have left.

    A change ends early if its archive is deleted or gets yet another embedder; `next_batch` and `switch` then report
    that it is over.

    Example:
        >>> for job in await store.claim(everything=False):
        ...     batch = await store.next_batch(job, None, 64, None)
        ...     while batch is not None and batch.changes:
        ...         await indexer.apply(batch.changes)
        ...         batch = await store.next_batch(job, batch, 64, None)
        ...     await store.switch(job)
    """

    async def claim(self, *, everything: bool) -> list[ReembeddingJob]:
        """Claims changes whose claim has expired (or all, with `everything`) for 60 seconds, oldest first."""

    async def renew(self, job: ReembeddingJob) -> bool:
        """Renews the claim. Returns False if the change is over."""

    async def next_batch(
        self, job: ReembeddingJob, copied: CopyBatch | None, limit: int, claim: Claim | None
    ) -> CopyBatch | None:
        """Records that a batch was copied, adds the changes of the next one, and renews the claim of the job.

        `claim` reserves the changes for the caller. None if the change is over.
        """

    async def switch(self, job: ReembeddingJob) -> None:
        """Switches the archive to the new embedder. Its points in the old collection are deleted some time later."""

    async def remove_left(self, limit: int, *, everything: bool) -> bool:
        """Adds the changes that delete points in a collection that an archive has left.

        Args:
            limit: the largest number of changes.
            everything: also in collections that searches which began earlier may still read.

        Returns:
            Whether there were any; there may be more.
        """
