"""Runs recorded operations on the vector index and settles them, at once and again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from mnemesh_retrieval.embedder import Vector

from mnemesh_archival.errors import EmbedderUnavailable
from mnemesh_archival.model.operations import DeletePoints, DropArchive, InsertPoints, Operation, UpdatePoint
from mnemesh_archival.store.base.passage_ledger import PassageLedger
from mnemesh_archival.store.base.passages import PassageStore
from mnemesh_archival.vectors.embedders import Embedders

_log = structlog.get_logger("mnemesh.archival")


class OperationWorker:
    """Runs operations. One that has started continues if its caller disconnects; `sweep` resumes what a crash left."""

    def __init__(self, ledger: PassageLedger, passages: PassageStore, embedders: Embedders) -> None:
        self._ledger = ledger
        self._passages = passages
        self._embedders = embedders
        self._running: set[asyncio.Task[None]] = set()

    async def embed(
        self, organization_id: str, archive_id: str | None, embedder: str, texts: Sequence[str]
    ) -> Sequence[Vector | None]:
        """Returns a vector for each new text.

        All are None while the archive is leaving an embedder that is unavailable: words find those passages until the
        new embedder serves.

        Raises:
            EmbedderUnavailable: the embedder is unavailable, and the archive is not leaving it.
        """
        try:
            return await self._embedders.embed(embedder, texts)
        except EmbedderUnavailable:
            if archive_id is None or not await self._ledger.is_reembedding(organization_id, archive_id):
                raise
        return [None] * len(texts)

    async def run(self, operation: Operation, vectors: Sequence[Vector | None] | None = None) -> None:
        """Runs and settles an operation.

        Args:
            operation: the operation.
            vectors: the vectors of its texts, if they are known; they are embedded otherwise.
        """
        task = asyncio.create_task(self._run(operation, vectors))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)

    async def sweep(self, *, everything: bool = False) -> None:
        """Runs operations that no process is running.

        Args:
            everything: also those whose claim has not expired. For a start when no other process can run any.
        """
        for operation in await self._ledger.claim_unsettled(everything=everything, limit=10_000 if everything else 100):
            try:
                await self.run(operation)
            except Exception:
                _log.exception("operation_failed", operation_id=operation.id)

    async def close(self) -> None:
        """Waits for the running operations."""
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _run(self, operation: Operation, vectors: Sequence[Vector | None] | None) -> None:
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
            vectors = await self.embed(operation.organization_id, archive_id, operation.embedder, texts)
        pairs = list(zip(operation.point_ids, operation.passages, strict=True))
        await self._passages.insert(operation.embedder, operation.organization_id, pairs, vectors)
        undo = await self._ledger.settle_insert(operation)
        if undo is not None:
            await self._run(undo, None)

    async def _update(self, operation: UpdatePoint, vectors: Sequence[Vector | None] | None) -> None:
        vector = None
        if "text" in operation.change.fields:
            vectors = vectors or await self.embed(
                operation.organization_id, operation.archive_id, operation.embedder, [operation.change.text]
            )
            vector = vectors[0]
        await self._passages.update(operation.embedder, operation.point_id, operation.change, vector)
