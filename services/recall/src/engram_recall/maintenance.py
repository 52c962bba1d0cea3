"""What makes the bytes of erased messages leave the disk: for a time when the service does not run."""

from __future__ import annotations

from collections.abc import AsyncIterator

from engram_kit.clock import Clock, SystemClock
from engram_kit.sql import Database
from engram_retrieval.edge import EdgeIndex

from engram_recall.config import Config
from engram_recall.errors import EmbedderAway
from engram_recall.indexer import Indexer, MessageVectors
from engram_recall.retention import Retention
from engram_recall.store.rewriting import rewrite_database
from engram_recall.store.sql import SqlRecallStore
from engram_recall.wiring import make_embedder_of, open_index


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Do it; a line for each thing that was done.

    Raises:
        StartupError: the service is running, and holds the index.
    """
    clock = clock or SystemClock()
    index = await open_index(config)
    try:
        async for line in _purge(config, index, clock):
            yield line
        rewritten = await rewrite_database(config.database)
        yield f"{rewritten.name}: {_shown(rewritten.bytes_before)} before, {_shown(rewritten.bytes_after)} now"
        for each in await index.rewrite():
            before, after = _shown(each.bytes_before), _shown(each.bytes_after)
            yield f"{each.collection}: {each.points:,} points kept; {before} before, {after} now"
    finally:
        await index.close()


async def _purge(config: Config, index: EdgeIndex, clock: Clock) -> AsyncIterator[str]:
    embedder = make_embedder_of(config)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("engram_recall")
        store = SqlRecallStore(database, clock)
        indexer = Indexer(store, MessageVectors(index, embedder), clock)
        await indexer.open_words()
        await indexer.open()
        yield f"messages that outlived the retention policy: {await _retention(config, store, indexer, clock).sweep()}"
        yield f"request ids forgotten: {await store.purge_ledger()}"
        try:
            yield f"changes brought into the vector index: {await indexer.catch_up()}"
        except EmbedderAway as error:
            # What is deleted needs no embedder; it is done when the embedder is back.
            yield f"the vector index still lags: {error.message}"
    finally:
        await database.close()
        await embedder.close()


def _retention(config: Config, store: SqlRecallStore, indexer: Indexer, clock: Clock) -> Retention:
    return Retention(store, indexer, clock, config.retention_days)


def _shown(size: int) -> str:
    return f"{size / 1_000_000:.2f} MB"
