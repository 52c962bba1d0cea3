"""Gives an archive another embedder: copies its passages in the background while the old vectors serve.

Passages are copied into the new embedder's collection batch by batch, each noted in SQL; those that are written
meanwhile are copied again. When none is left, one transaction lets the copies serve. For the very last ones writers
are held up for a moment, readers never. A process that dies leaves what it noted, and the next one goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

import structlog
from mnemesh_kit.errors import MnemeshError
from mnemesh_retrieval.errors import RetrievalError

from mnemesh_archival.store.base import PassageStore, PendingCopy, ReembeddingJob, ReembeddingStore
from mnemesh_archival.vectors.embedders import Embedders

BATCH = 64
BATCH_SECONDS = 30.0
"""How long a batch may take; less than its claim lasts."""
HOLD_SECONDS = 1.0
"""How long writers are held up at most."""
SOME_SECONDS = 3.0
"""The pause after a failure, and between two holds."""
LOOK_SECONDS = 5.0
"""How often to look for changes that another replica has begun or left."""
_log = structlog.get_logger("mnemesh.archival")


class ReembeddingWorker:
    """The one task of a process that carries changes of embedders out, one after the other."""

    def __init__(
        self, store: ReembeddingStore, passages: PassageStore, embedders: Embedders, *, alone: bool = True
    ) -> None:
        self._store = store
        self._passages = passages
        self._embedders = embedders
        self._alone = alone
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be a change to carry out."""
        self._woken.set()

    async def run(self) -> None:
        """Carry changes out for ever."""
        everything = self._alone
        while True:
            self._woken.clear()
            for move in await self._claimed(everything):
                await self._try(move)
            everything = False
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _claimed(self, everything: bool) -> list[ReembeddingJob]:
        try:
            return await self._store.claim(everything=everything)
        except MnemeshError:
            _log.exception("changes of embedders could not be looked up")
            return []

    async def _try(self, move: ReembeddingJob) -> None:
        try:
            await self._carry_out(move)
            _log.info("a change of embedder is over", archive=move.archive_id, embedder=move.target)
        except (MnemeshError, RetrievalError, TimeoutError) as error:
            _log.warning("a change of embedder is tried again", archive=move.archive_id, why=str(error))
            try:
                await self._store.release(move, SOME_SECONDS)
            except MnemeshError:
                _log.exception("a change of embedder could not be released; its claim runs out")

    async def _carry_out(self, move: ReembeddingJob) -> None:
        swept = False
        hold_after = 0.0
        while True:
            batch = await self._store.next_batch(move, BATCH)
            if batch is None:
                return
            if batch:
                async with asyncio.timeout(BATCH_SECONDS):
                    await self._copy(move, batch)
                continue
            if not swept:
                await self._remove_strangers(move)
                swept = True
            if await self._store.switch(move):
                return
            # Writers are faster than we are: they wait, but not for long, and not all the time.
            if time.monotonic() >= hold_after:
                await self._store.hold_writers(move, HOLD_SECONDS)
                hold_after = time.monotonic() + HOLD_SECONDS + SOME_SECONDS
            await asyncio.sleep(0.01)

    async def _copy(self, move: ReembeddingJob, batch: Sequence[PendingCopy]) -> None:
        points = [each.point_id for each in batch]
        found = await self._passages.get(move.source, points, with_embedding=False)
        pairs = [(point, found[point]) for point in points if point in found]
        vectors = await self._embedders.embed(move.target, [passage.text for _, passage in pairs])
        await self._passages.insert(move.target, move.organization_id, pairs, vectors, replace=True)
        gone = await self._store.mark(move, batch)
        if gone:
            await self._passages.delete(move.target, gone)

    async def _remove_strangers(self, move: ReembeddingJob) -> None:
        """Take out what a process that died had copied just before its passage was deleted."""
        last: UUID | None = None
        while True:
            points = await self._passages.point_ids(
                move.target, move.organization_id, move.archive_id, after=last, limit=1_000
            )
            strangers = await self._store.strangers(move, points)
            if strangers:
                await self._passages.delete(move.target, strangers)
            if len(points) < 1_000:
                return
            last = points[-1]
