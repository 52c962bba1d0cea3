"""Changes the embedder of an archive: indexes its passages for the new embedder in the background.

The collection of the old embedder serves meanwhile. Passages that were there when the change started are indexed in
batches, in their order; each batch is recorded in SQL. New and changed passages are written to both collections. Then
one transaction switches the archive. After a crash, another process resumes from the recorded position.
"""

from __future__ import annotations

import asyncio

import structlog
from mnemesh_kit.errors import MnemeshError

from mnemesh_archival.store.base.passage_index import PassageIndex
from mnemesh_archival.store.base.reembeddings import ReembeddingJob, ReembeddingStore

BATCH = 64
REMOVAL_BATCH = 500
RETRY_SECONDS = 3.0
"""The wait after a failure."""
POLL_SECONDS = 5.0
"""How often to look for changes of embedder that another replica started or abandoned."""
_log = structlog.get_logger("mnemesh.archival")


class ReembeddingWorker:
    """The background task of a process that changes embedders, each archive in a task of its own.

    Args:
        store: the changes of embedder and their progress.
        index: the passages in the index.
        exclusive: whether no other process uses the index, so that every claim at start is of a process that ended.
    """

    def __init__(self, store: ReembeddingStore, index: PassageIndex, *, exclusive: bool = True) -> None:
        self._store = store
        self._index = index
        self._exclusive = exclusive
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Makes the worker look for new changes at once."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        everything = self._exclusive
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                for job in await self._claimed(everything):
                    tasks.create_task(self._try(job), name=f"reembedding of {job.archive_id}")
                everything = False
                await self._remove_left()
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    async def remove_left(self, *, everything: bool = False) -> None:
        """Adds the changes that delete the points in collections that archives have left.

        Args:
            everything: also where searches that began earlier may still read them. For maintenance.
        """
        more = True
        while more:
            more = await self._store.remove_left(REMOVAL_BATCH, everything=everything)

    async def _claimed(self, everything: bool) -> list[ReembeddingJob]:
        try:
            return await self._store.claim(everything=everything)
        except MnemeshError:
            _log.exception("reembedding_claim_failed")
            return []

    async def _remove_left(self) -> None:
        try:
            await self.remove_left()
        except MnemeshError:
            _log.exception("reembedding_removal_failed")

    async def _try(self, job: ReembeddingJob) -> None:
        """Carries out a change. After an error, the change is claimed again once its claim has expired."""
        try:
            if await self._reembed(job):
                _log.info("reembedding_finished", archive_id=job.archive_id, embedder=job.target)
        except MnemeshError:
            _log.exception("reembedding_interrupted", archive_id=job.archive_id, embedder=job.target)

    async def _reembed(self, job: ReembeddingJob) -> bool:
        """Returns whether the archive has the new embedder; False if the change is over for another reason."""
        batch = await self._store.next_batch(job, None, BATCH, self._index.claim())
        while batch is not None and batch.changes:
            waits = False
            while not await self._index.apply(batch.changes, within=None):
                if not waits:
                    _log.warning("reembedding_waits", archive_id=job.archive_id, embedder=job.target)
                waits = True
                await asyncio.sleep(RETRY_SECONDS)
                if not await self._store.renew(job):
                    return False
            batch = await self._store.next_batch(job, batch, BATCH, self._index.claim())
        if batch is None:
            return False
        await self._store.switch(job)
        return True
