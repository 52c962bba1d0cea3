"""Carries out recorded operations on the index and settles them: at once, and again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog
from mnemesh_retrieval.embedder import Vector

from mnemesh_archival.errors import EmbedderUnavailable
from mnemesh_archival.model.operations import DeletePoints, DropArchive, InsertPoints, Operation, UpdatePoint
from mnemesh_archival.store.base import PassageLedger, PassageStore
from mnemesh_archival.vectors.embedders import Embedders

_log = structlog.get_logger("mnemesh.archival")


class OperationWorker:
    """Work once begun goes on though its caller hangs up; what a crash left is taken up by `sweep`."""

    def __init__(self, ledger: PassageLedger, passages: PassageStore, embedders: Embedders) -> None:
        self._ledger = ledger
        self._passages = passages
        self._embedders = embedders
        self._running: set[asyncio.Task[None]] = set()

    async def vectors(
        self, organization_id: str, archive_id: str | None, embedder: str, texts: Sequence[str]
    ) -> Sequence[Vector | None]:
        """The vectors of new texts. Without any, while the archive leaves an embedder that is away: words find them.

        EmbedderUnavailable in any other case.
        """
        try:
            return await self._embedders.embed(embedder, texts)
        except EmbedderUnavailable:
            if archive_id is None or not await self._ledger.is_moving(organization_id, archive_id):
                raise
        return [None] * len(texts)

    async def finish(self, operation: Operation, vectors: Sequence[Vector | None] | None = None) -> None:
        """Carry an operation out. `vectors` saves embedding its texts again."""
        await self._to_its_end(self._finish(operation, vectors))

    async def sweep(self, *, everything: bool = False) -> None:
        """Finish what nobody is at any more; `everything` is for a start when no other process can be at it."""
        for operation in await self._ledger.unsettled(everything=everything, limit=10_000 if everything else 100):
            try:
                await self.finish(operation)
            except Exception:
                _log.exception("recorded work could not be finished yet", operation=operation.id)

    async def close(self) -> None:
        """Wait for what is running."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)

    async def _finish(self, operation: Operation, vectors: Sequence[Vector | None] | None) -> None:
        match operation:
            case InsertPoints():
                await self._insert(operation, vectors)
                return
            case UpdatePoint():
                await self._update(operation, vectors)
            case DeletePoints(embedder=embedder, point_ids=points):
                await self._passages.delete(embedder, points)
            case DropArchive(organization_id=organization_id, embedder=embedder, archive_id=archive_id):
                await self._passages.drop_archive(embedder, organization_id, archive_id)
        await self._ledger.settle(operation)

    async def _insert(self, operation: InsertPoints, vectors: Sequence[Vector | None] | None) -> None:
        if vectors is None:
            texts = [passage.text for passage in operation.passages]
            archive_id = operation.passages[0].archive_id
            vectors = await self.vectors(operation.organization_id, archive_id, operation.embedder, texts)
        pairs = list(zip(operation.point_ids, operation.passages, strict=True))
        await self._passages.insert(operation.embedder, operation.organization_id, pairs, vectors)
        undo = await self._ledger.settle_insert(operation)
        if undo is not None:
            await self._finish(undo, None)

    async def _update(self, operation: UpdatePoint, vectors: Sequence[Vector | None] | None) -> None:
        vector = None
        if "text" in operation.change.fields:
            vectors = vectors or await self.vectors(
                operation.organization_id, operation.archive_id, operation.embedder, [operation.change.text]
            )
            vector = vectors[0]
        await self._passages.update(operation.embedder, operation.point_id, operation.change, vector)
