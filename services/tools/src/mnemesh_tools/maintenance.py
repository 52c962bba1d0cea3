"""Work on the files for a time when the service does not run: erased bytes leave the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.rewrite import require_unused, rewrite_database

from mnemesh_tools.config import Config
from mnemesh_tools.store.sql.tables import metadata
from mnemesh_tools.store.sql.tools import SqlToolStore


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Do it; a line for each thing that was done.

    Raises:
        StartupError: the service is running, and has the database open.
    """
    clock = clock or SystemClock()
    require_unused(config.database)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("mnemesh_tools")
        store = SqlToolStore(database, clock)
        yield f"idempotency keys deleted: {await store.purge_requests()}"
    finally:
        await database.close()
    yield str(await rewrite_database(config.database, list(metadata.tables)))
