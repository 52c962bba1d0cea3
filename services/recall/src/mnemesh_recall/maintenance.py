"""Work on the files for a time when the service does not run: erased bytes leave the disk, indexes are made anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.rewrite import megabytes, require_unused, rewrite_database
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.startup import embedder_from_config

from mnemesh_recall.config import Config
from mnemesh_recall.errors import EmbedderAway
from mnemesh_recall.store.sql.episodes import SqlEpisodeStore
from mnemesh_recall.store.sql.messages import SqlMessageStore
from mnemesh_recall.store.sql.tables import metadata
from mnemesh_recall.usecases.retention import Retention
from mnemesh_recall.vectors.indexer import Indexer
from mnemesh_recall.vectors.memories import PREFIX as MEMORIES
from mnemesh_recall.vectors.memories import MemoryIndexer, MemoryVectors
from mnemesh_recall.vectors.messages import PREFIX as MESSAGES
from mnemesh_recall.vectors.messages import MessageVectors
from mnemesh_recall.wiring import open_vector_index

COLLECTIONS = (MESSAGES, MEMORIES)
"""Begin the names of ours; on a server there are others."""
WORDS = "message_words"
# Words of deleted rows stay in the segments of the index until it is made anew from the rows that are left.
_WORDS_ANEW = "INSERT INTO message_words(message_words) VALUES ('rebuild')"


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Do it; a line for each thing that was done.

    Raises:
        StartupError: the service is running, and holds the index or the database.
    """
    clock = clock or SystemClock()
    index = await open_vector_index(config)
    try:
        require_unused(config.database)
        async for line in _purge(config, index, clock):
            yield line
        tables = [WORDS, *(table.name for table in metadata.sorted_tables)]
        yield str(await rewrite_database(config.database, tables, sqlite_first=[_WORDS_ANEW]))
        async for line in _rewrite_index(config, index):
            yield line
    finally:
        await index.close()


async def rebuild(config: Config) -> AsyncIterator[str]:
    """Make the word index and the vector index anew from the messages; a line for each.

    On a Qdrant server, services that run meanwhile find by words alone until it is done.

    Raises:
        StartupError: the service is running, and holds the index or the database.
    """
    index = await open_vector_index(config)
    try:
        require_unused(config.database)
        for name in await index.collections():
            if name.startswith(COLLECTIONS):
                await index.drop_collection(name)
        async with _opened(config, index, SystemClock()) as (store, indexer):
            yield f"messages in the word index: {await store.rebuild_words()}"
            await indexer.open()
            yield f"messages in the vector index: {await indexer.finish()}"
    finally:
        await index.close()


async def _purge(config: Config, index: NearestIndex, clock: Clock) -> AsyncIterator[str]:
    async with _opened(config, index, clock) as (store, indexer):
        await indexer.open_words()
        await indexer.open()
        outlived = await Retention(store, indexer, clock, config.retention_days).sweep()
        yield f"messages that outlived the retention policy: {outlived}"
        yield f"idempotency keys deleted: {await store.purge_ledger()}"
        steps = await store.purge_steps(clock.now() - timedelta(days=config.repeat_days))
        yield f"committed steps whose ids were forgotten: {steps}"
        try:
            yield f"changes brought into the vector index: {await indexer.catch_up()}"
        except EmbedderAway as error:
            # What is deleted needs no embedder; it is done when the embedder is back.
            yield f"the vector index still lags: {error.message}"


async def _rewrite_index(config: Config, index: NearestIndex) -> AsyncIterator[str]:
    if config.qdrant_url:
        yield "vectors: the Qdrant server's optimizer rewrites segments by its own thresholds; nothing was done here"
        return
    assert isinstance(index, FlatIndex)  # noqa: S101 - what `open_vector_index` opens without a server
    done = await index.rewrite()
    for collection, points in done.points.items():
        yield f"{collection}: {points:,} points kept"
    yield f"vectors.db: {megabytes(done.bytes_before)} before, {megabytes(done.bytes_after)} now"


@asynccontextmanager
async def _opened(config: Config, index: NearestIndex, clock: Clock) -> AsyncIterator[tuple[SqlMessageStore, Indexer]]:
    embedder = embedder_from_config(config)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("mnemesh_recall")
        store, vectors = SqlMessageStore(database, clock, RandomIds()), MessageVectors(index, embedder)
        memories = MemoryIndexer(SqlEpisodeStore(database, clock, RandomIds()), MemoryVectors(index, embedder))
        holder = new_id("indexer") if config.qdrant_url else None
        yield store, Indexer(store, vectors, clock, holder, memories=memories)
    finally:
        await database.close()
        await embedder.close()
