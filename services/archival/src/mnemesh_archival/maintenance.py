"""Maintenance while the service is stopped: the bytes of deleted data leave the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.maintenance import maintain_database
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.rewrite import megabytes
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.startup import embedder_from_config, open_index

from mnemesh_archival.config import Config
from mnemesh_archival.store.sql.passage_ledger import SqlPassageLedger
from mnemesh_archival.store.sql.tables import metadata
from mnemesh_archival.usecases.operation_worker import OperationWorker
from mnemesh_archival.vectors.embedders import Embedders
from mnemesh_archival.vectors.passages import VectorPassageStore


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Runs unfinished operations, purges what has expired, and rewrites the database and the embedded index.

    Yields:
        The lines of a report.

    Raises:
        StartupError: the service is running, and uses the index or the database.
    """
    clock = clock or SystemClock()
    index = await open_index(config, config.index_path, EdgeIndex)
    embedders = Embedders(embedder_from_config(config), config.embedder_settings)

    async def purge(database: Database) -> AsyncIterator[str]:
        ledger = SqlPassageLedger(database, clock, RandomIds())
        operations = OperationWorker(ledger, VectorPassageStore(index, embedders), embedders)
        # Unfinished operations contain texts, or leave points that are deleted.
        await operations.sweep(everything=not config.qdrant_url)
        unfinished = await ledger.claim_unsettled(everything=True, limit=1_000_000)
        yield f"operations that could not be finished: {len(unfinished)}"
        yield f"idempotency keys deleted: {await ledger.purge_requests()}"
        horizon = clock.now() - timedelta(days=config.tombstone_days)
        yield f"tombstones of passages deleted: {await ledger.purge_tombstones(horizon)}"

    try:
        async for line in maintain_database(config, "mnemesh_archival", list(metadata.tables), purge):
            yield line
        if not isinstance(index, EdgeIndex):
            yield "vectors: nothing was done; the Qdrant server rewrites segments by its own thresholds"
            return
        for each in await index.rewrite():
            before, after = megabytes(each.bytes_before), megabytes(each.bytes_after)
            yield f"{each.collection}: {each.points:,} points kept; {before} before, {after} now"
    finally:
        await embedders.close()
        await index.close()
