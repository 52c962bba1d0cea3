"""Maintenance while the service is stopped: the bytes of deleted data leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.ids import RandomIds
from mnemesh_kit.maintenance import megabytes, require_unused, rewrite_database
from mnemesh_kit.time import Clock, SystemClock
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.errors import RetrievalError

from mnemesh_archival.config import Config
from mnemesh_archival.store.passages import TOMBSTONE_LIFE
from mnemesh_archival.store.tables import metadata
from mnemesh_archival.wiring import Parts, open_parts


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Brings the index up to date, purges what has expired, and rewrites the database and the embedded index.

    Yields:
        The lines of a report.

    Raises:
        StartupError: the service is running, and uses the index or the database.
    """
    clock = clock or SystemClock()
    require_unused(config.database)
    parts = await open_parts(config, clock, RandomIds())
    try:
        async for line in _purge(config, parts, clock):
            yield line
        await parts.indexer.close()
        await parts.database.close()
        yield str(await rewrite_database(config.database, list(metadata.tables)))
        if not isinstance(parts.vectors, EdgeIndex):
            yield "vectors: nothing was done; the Qdrant server rewrites segments by its own thresholds"
            return
        for each in await parts.vectors.rewrite():
            before, after = megabytes(each.bytes_before), megabytes(each.bytes_after)
            yield f"{each.collection}: {each.points:,} points kept; {before} before, {after} now"
    finally:
        await parts.embedders.close()
        await parts.vectors.close()


async def _purge(config: Config, parts: Parts, clock: Clock) -> AsyncIterator[str]:
    await parts.index.open()
    # With a server, another replica's searches may read the collections that archives have left.
    await parts.reembedding.remove_left(everything=not config.qdrant_url)
    try:
        await parts.indexer.drain()
    except RetrievalError as error:
        yield f"the vector index is not up to date: {error}"
    yield f"changes that the vector index lacks: {await parts.outbox.count()}"
    yield f"idempotency keys deleted: {await parts.passages.purge_requests()}"
    horizon = clock.now() - TOMBSTONE_LIFE
    yield f"tombstones of passages deleted: {await parts.passages.purge_tombstones(horizon)}"
