"""Changes the embedder of an archive: copies its passages in the background while the old vectors serve.

Passages are copied into the collection of the new embedder in batches, and each copy is recorded in SQL; passages that
change meanwhile are copied again. When none is left, one transaction switches the archive to the copies. Writers are
paused for a moment while the last passages are copied; readers never are. After a crash, another process resumes from
the recorded copies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_retrieval.errors import RetrievalError

from mnemesh_archival.store.base.passages import PassageStore
from mnemesh_archival.store.base.reembeddings import PendingCopy, ReembeddingJob, ReembeddingStore
from mnemesh_archival.vectors.embedders import Embedders

BATCH = 64
BATCH_SECONDS = 30.0
"""The time limit of one batch; shorter than its claim."""
PAUSE_SECONDS = 1.0
"""The longest pause of writers."""
RETRY_SECONDS = 3.0
"""The wait after a failure, and between two pauses of writers."""
POLL_SECONDS = 5.0
"""How often to look for changes of embedder that another replica started or abandoned."""
SCAN_PAGE = 1_000
_log = structlog.get_logger("mnemesh.archival")


class ReembeddingWorker:
    """The background task of a process that changes embedders, one archive after the other.

    Args:
        store: the changes of embedder and their progress.
        passages: the passages in the index.
        embedders: the embedders.
        exclusive: whether no other process uses the index, so that every claim at start is of a process that ended.
    """

    def __init__(
        self, store: ReembeddingStore, passages: PassageStore, embedders: Embedders, *, exclusive: bool = True
    ) -> None:
        self._store = store
        self._passages = passages
        self._embedders = embedders
        self._exclusive = exclusive
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Makes the worker look for new changes at once."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        everything = self._exclusive
        while True:
            self._wake.clear()
            for job in await self._claimed(everything):
                await self._try(job)
            everything = False
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _claimed(self, everything: bool) -> list[ReembeddingJob]:
        try:
            return await self._store.claim(everything=everything)
        except MnemeshError:
            _log.exception("reembedding_claim_failed")
            return []

    async def _try(self, job: ReembeddingJob) -> None:
        try:
            await self._reembed(job)
            _log.info("reembedding_finished", archive_id=job.archive_id, embedder=job.target)
        except (MnemeshError, RetrievalError, TimeoutError) as error:
            _log.warning("reembedding_retried", archive_id=job.archive_id, embedder=job.target, error=str(error))
            try:
                await self._store.release(job, RETRY_SECONDS)
            except MnemeshError:
                _log.exception("reembedding_release_failed", archive_id=job.archive_id)

    async def _reembed(self, job: ReembeddingJob) -> None:
        orphans_deleted = False
        next_pause = 0.0
        while True:
            batch = await self._store.next_batch(job, BATCH)
            if batch is None:
                return
            if batch:
                async with asyncio.timeout(BATCH_SECONDS):
                    await self._copy(job, batch)
                continue
            if not orphans_deleted:
                await self._delete_orphans(job)
                orphans_deleted = True
            if await self._store.switch(job):
                return
            # Writers are faster than this task: they pause, but only briefly and not all the time.
            if time.monotonic() >= next_pause:
                await self._store.pause_writers(job, PAUSE_SECONDS)
                next_pause = time.monotonic() + PAUSE_SECONDS + RETRY_SECONDS
            await asyncio.sleep(0.01)

    async def _copy(self, job: ReembeddingJob, batch: Sequence[PendingCopy]) -> None:
        points = [copy.point_id for copy in batch]
        found = await self._passages.get(job.source, points, with_embedding=False)
        pairs = [(point, found[point]) for point in points if point in found]
        vectors = await self._embedders.embed(job.target, [passage.text for _, passage in pairs])
        await self._passages.insert(job.target, job.organization_id, pairs, vectors, replace=True)
        deleted = await self._store.mark_copied(job, batch)
        if deleted:
            await self._passages.delete(job.target, deleted)

    async def _delete_orphans(self, job: ReembeddingJob) -> None:
        """Deletes copies of passages that were deleted after a process copied them and before it recorded that."""
        last: UUID | None = None
        while True:
            points = await self._passages.point_ids(
                job.target, job.organization_id, job.archive_id, after=last, limit=SCAN_PAGE
            )
            orphans = await self._store.orphaned_points(job, points)
            if orphans:
                await self._passages.delete(job.target, orphans)
            if len(points) < SCAN_PAGE:
                return
            last = points[-1]
