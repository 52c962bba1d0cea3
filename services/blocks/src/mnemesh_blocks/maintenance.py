"""Maintenance of the database while the service is stopped: deleted bytes leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.maintenance import maintain_database
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock, SystemClock

from mnemesh_blocks.config import Config
from mnemesh_blocks.store.blocks import TOMBSTONE_LIFE, BlockStore
from mnemesh_blocks.store.tables import metadata


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Deletes what has expired and rewrites the database.

    Yields:
        One line for each thing that was done.

    Raises:
        StartupError: The service is running and uses the database.
    """
    clock = clock or SystemClock()

    async def purge(database: Database) -> AsyncIterator[str]:
        store = BlockStore(database, clock)
        yield f"idempotency keys deleted: {await store.purge_ledger()}"
        before = clock.now() - TOMBSTONE_LIFE
        yield f"tombstones deleted: {await store.purge_tombstones(before)}"

    async for line in maintain_database(config, "mnemesh_blocks", list(metadata.tables), purge):
        yield line
