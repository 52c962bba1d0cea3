"""Maintenance while the service is stopped: erased bytes leave the disk, and indexes are rebuilt."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mnemesh_kit.ids import RandomIds
from mnemesh_kit.maintenance import maintain_database, megabytes, require_unused
from mnemesh_kit.sql import Database, open_database
from mnemesh_kit.time import Clock, SystemClock
from mnemesh_retrieval.errors import IndexDamaged
from mnemesh_retrieval.filters import EVERYTHING
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.index import NearestIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.startup import embedder_from_config

from mnemesh_recall.config import Config
from mnemesh_recall.store.messages import REPEAT_LIFE, MessageStore
from mnemesh_recall.usecases.messages import Retention, WordIndexing, WordRebuild
from mnemesh_recall.vectors import MEMORY_PREFIX as MEMORIES
from mnemesh_recall.vectors import MESSAGE_PREFIX as MESSAGES
from mnemesh_recall.wiring import build_indexer, open_vector_index, register_collections

COLLECTIONS = (MESSAGES, MEMORIES)
"""The prefixes of recall's collections. A server may have others."""
TERMS_TABLE = "message_terms"
# The keys of deleted messages stay in the parts of FTS5 until these are merged.
_MERGE_TERMS = "INSERT INTO message_terms(message_terms) VALUES ('optimize')"


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Purges and rewrites the database and the vector index. Yields a line of the report for each result.

    Raises:
        StartupError: the service is running and uses the index or the database.
    """
    clock = clock or SystemClock()
    index = await open_vector_index(config)

    async def purge(database: Database) -> AsyncIterator[str]:
        async for line in _purge(config, database, index, clock):
            yield line

    terms = {"further_tables": [TERMS_TABLE], "sqlite_first": [_MERGE_TERMS]}
    try:
        async for line in maintain_database(config, "mnemesh_recall", purge, **terms):
            yield line
        async for line in _rewrite_index(config, index):
            yield line
    finally:
        await index.close()


async def rebuild(config: Config) -> AsyncIterator[str]:
    """Rebuilds the full-text index and the vector index from the messages. Yields a line of the report for each.

    On a Qdrant server, other running services use full-text search alone until the rebuild is complete.

    Raises:
        StartupError: the service is running and uses the index or the database.
    """
    index = await open_vector_index(config)
    try:
        require_unused(config.database)
        await _drop_collections(index)
        database = await open_database(config, "mnemesh_recall")
        try:
            async with _opened(config, database, index, SystemClock()) as (store, indexer):
                yield f"messages in the word index: {await store.rebuild_fulltext()}"
                await indexer.open()
                await indexer.drain()
                for name in await index.collections():
                    if name.startswith(COLLECTIONS):
                        yield f"{name}: {await index.count(name, EVERYTHING):,} points"
        finally:
            await database.close()
    finally:
        await index.close()


async def _purge(config: Config, database: Database, index: NearestIndex, clock: Clock) -> AsyncIterator[str]:
    async with _opened(config, database, index, clock) as (store, indexer):
        words = WordRebuild(store)
        await words.mark()
        await words.run()
        await WordIndexing(store, clock).index_all()
        await indexer.open()
        expired = await Retention(store, indexer, clock, config.retention_days).sweep()
        yield f"messages that outlived the retention policy: {expired}"
        yield f"idempotency keys deleted: {await store.purge_ledger()}"
        steps = await store.purge_steps(clock.now() - REPEAT_LIFE)
        yield f"committed steps whose ids were forgotten: {steps}"
        yield f"changes applied to the vector index: {await indexer.catch_up()}"
        for name, error in indexer.failures().items():
            yield f"{name} still lacks changes: {error}"
        await indexer.close()


async def _drop_collections(index: NearestIndex) -> None:
    """Drops recall's collections; damaged files are moved aside."""
    try:
        for name in await index.collections():
            if name.startswith(COLLECTIONS):
                await index.drop_collection(name)
    except IndexDamaged:
        await index.set_aside(MESSAGES)


async def _rewrite_index(config: Config, index: NearestIndex) -> AsyncIterator[str]:
    if config.qdrant_url:
        yield "vectors: the Qdrant server's optimizer rewrites segments by its own thresholds; nothing was done here"
        return
    assert isinstance(index, FlatIndex)  # noqa: S101 - `open_index` opens this one without a server
    result = await index.rewrite()
    for collection, points in result.points.items():
        yield f"{collection}: {points:,} points kept"
    yield f"vectors.db: {megabytes(result.bytes_before)} before, {megabytes(result.bytes_after)} now"


@asynccontextmanager
async def _opened(
    config: Config, database: Database, index: NearestIndex, clock: Clock
) -> AsyncIterator[tuple[MessageStore, Indexer]]:
    embedder = embedder_from_config(config)
    try:
        store, indexer = MessageStore(database, clock, RandomIds()), build_indexer(config, database, index, clock)
        await register_collections(indexer, database, index, embedder)
        yield store, indexer
    finally:
        await embedder.close()
