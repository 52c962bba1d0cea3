"""Work on the files for a time when the service does not run: erased bytes leave the disk, indexes are made anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engram_kit.clock import Clock, SystemClock
from engram_kit.ids import RandomIds
from engram_kit.sql import Database
from engram_retrieval.edge import EdgeIndex

from engram_recall.config import Config
from engram_recall.errors import EmbedderAway
from engram_recall.indexer import Indexer, MessageVectors
from engram_recall.memory_vectors import MemoryFollower, MemoryVectors
from engram_recall.retention import Retention
from engram_recall.store.memory_sql import SqlMemoryStore
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


async def rebuild(config: Config) -> AsyncIterator[str]:
    """Make the word index and the vector index anew from the messages; a line for each.

    Raises:
        StartupError: the service is running, and holds the index.
    """
    index = await open_index(config)
    try:
        for name in await index.collections():
            await index.drop_collection(name)
        async with _opened(config, index, SystemClock()) as (store, indexer):
            yield f"messages in the word index: {await store.rebuild_words()}"
            await indexer.open()
            yield f"messages in the vector index: {await indexer.catch_up()}"
    finally:
        await index.close()


async def _purge(config: Config, index: EdgeIndex, clock: Clock) -> AsyncIterator[str]:
    async with _opened(config, index, clock) as (store, indexer):
        await indexer.open_words()
        await indexer.open()
        outlived = await Retention(store, indexer, clock, config.retention_days).sweep()
        yield f"messages that outlived the retention policy: {outlived}"
        yield f"request ids forgotten: {await store.purge_ledger()}"
        try:
            yield f"changes brought into the vector index: {await indexer.catch_up()}"
        except EmbedderAway as error:
            # What is deleted needs no embedder; it is done when the embedder is back.
            yield f"the vector index still lags: {error.message}"


@asynccontextmanager
async def _opened(config: Config, index: EdgeIndex, clock: Clock) -> AsyncIterator[tuple[SqlRecallStore, Indexer]]:
    embedder = make_embedder_of(config)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("engram_recall")
        store = SqlRecallStore(database, clock)
        memories = MemoryFollower(SqlMemoryStore(database, clock, RandomIds()), MemoryVectors(index, embedder))
        yield store, Indexer(store, MessageVectors(index, embedder), clock, memories=memories)
    finally:
        await database.close()
        await embedder.close()


def _shown(size: int) -> str:
    return f"{size / 1_000_000:.2f} MB"
