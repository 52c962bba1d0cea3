"""Maintenance of a service's database while the service is stopped: deleted bytes leave the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from mnemesh_kit.sql import Database, SqlConfig, open_database
from mnemesh_kit.sql.rewrite import require_unused, rewrite_database


async def maintain_database(
    config: SqlConfig,
    package: str,
    tables: Sequence[str],
    purge: Callable[[Database], AsyncIterator[str]],
    *,
    sqlite_first: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Migrates and purges the database of a stopped service, then rewrites its files.

    Args:
        config: the service's settings.
        package: the service's package, whose `store/migrations` has the revisions.
        tables: the names of the tables that PostgreSQL rewrites; an SQLite file is rewritten as a whole.
        purge: deletes what has expired, and yields a line of the report for each kind.
        sqlite_first: statements that SQLite runs before it rewrites the file.

    Yields:
        The lines of the report: those of `purge`, then the sizes before and after.

    Raises:
        StartupError: the service is running and uses the database, or the database cannot be opened.
    """
    require_unused(config.database)
    database = await open_database(config, package)
    try:
        async for line in purge(database):
            yield line
    finally:
        await database.close()
    yield str(await rewrite_database(config.database, tables, sqlite_first=sqlite_first))
