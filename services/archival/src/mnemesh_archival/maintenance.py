"""What makes the bytes of erased things leave the disk: for a time when the service does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import RandomIds
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.rewrite import megabytes, require_unused, rewrite_database
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.index import VectorIndex
from mnemesh_retrieval.startup import embedder_from_config, open_index

from mnemesh_archival.config import Config
from mnemesh_archival.store.sql.passage_ledger import SqlPassageLedger
from mnemesh_archival.store.sql.tables import metadata
from mnemesh_archival.usecases.operation_worker import OperationWorker
from mnemesh_archival.vectors.embedders import Embedders
from mnemesh_archival.vectors.passages import VectorPassageStore


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Do it; a line for each thing that was done.

    StartupError if the service is running: it holds the index.
    """
    clock = clock or SystemClock()
    index = await open_index(config, config.index_path, EdgeIndex)
    try:
        require_unused(config.database)
        async for line in _purge(config, index, clock):
            yield line
        yield str(await rewrite_database(config.database, list(metadata.tables)))
        async for line in _rewrite_index(config, index):
            yield line
    finally:
        await index.close()


async def _purge(config: Config, index: VectorIndex, clock: Clock) -> AsyncIterator[str]:
    embedders = Embedders(embedder_from_config(config), config.embedder_settings)
    async with _database(config) as database:
        ledger = SqlPassageLedger(database, clock, RandomIds())
        finisher = OperationWorker(ledger, VectorPassageStore(index, embedders), embedders)
        # What is recorded and not done holds texts, or leaves points that are deleted.
        await finisher.sweep(everything=not config.qdrant_url)
        left = len(await ledger.unsettled(everything=True, limit=1_000_000))
        yield f"recorded work that could not be finished: {left}"
        yield f"idempotency keys deleted: {await ledger.purge_requests()}"
        horizon = clock.now() - timedelta(days=config.tombstone_days)
        yield f"tombstones of passages forgotten: {await ledger.purge_tombstones(horizon)}"
    await embedders.close()


async def _rewrite_index(config: Config, index: VectorIndex) -> AsyncIterator[str]:
    if config.qdrant_url:
        yield "vectors: the Qdrant server's optimizer rewrites segments by its own thresholds; nothing was done here"
        return
    assert isinstance(index, EdgeIndex)  # noqa: S101 - what `open_index` opens without a server
    for each in await index.rewrite():
        before, after = megabytes(each.bytes_before), megabytes(each.bytes_after)
        yield f"{each.collection}: {each.points:,} points kept; {before} before, {after} now"


@asynccontextmanager
async def _database(config: Config) -> AsyncIterator[Database]:
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("mnemesh_archival")
        yield database
    finally:
        await database.close()
