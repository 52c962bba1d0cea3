"""Work on the files for a time when the orchestrator does not run: erased bytes leave the disk."""

from collections.abc import AsyncIterator

from mnemesh_kit.clock import Clock, SystemClock
from mnemesh_kit.idempotency import RETENTION
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.rewrite import require_unused, rewrite_database

from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.store.sql.runs import SqlRunStore
from mnemesh_orchestrator.store.sql.tables import metadata


async def maintain(config: Config, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """Do it; a line for each thing that was done.

    Raises:
        StartupError: the service is running, and has the database open.
    """
    clock = clock or SystemClock()
    require_unused(config.database)
    database = Database.open(config.database, synchronous=config.sqlite_synchronous)
    try:
        await database.migrate("mnemesh_orchestrator")
        forgotten = await SqlRunStore(database, clock).purge_requests(clock.now() - RETENTION)
        yield f"idempotency keys deleted: {forgotten}"
    finally:
        await database.close()
    yield str(await rewrite_database(config.database, list(metadata.tables)))
