"""Maintenance of the database while the service is stopped: deleted bytes leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.maintenance import maintenance_of
from mnemesh_kit.sql import Database
from mnemesh_kit.time import Clock

from mnemesh_blocks.config import Config
from mnemesh_blocks.store.blocks import TOMBSTONE_LIFE, BlockStore


@maintenance_of("mnemesh_blocks")
async def maintain(_config: Config, database: Database, clock: Clock) -> AsyncIterator[str]:
    """Deletes what has expired. Yields one line for each thing that was done."""
    store = BlockStore(database, clock)
    yield f"idempotency keys deleted: {await store.purge_ledger()}"
    before = clock.now() - TOMBSTONE_LIFE
    yield f"tombstones deleted: {await store.purge_tombstones(before)}"
