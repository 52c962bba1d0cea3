"""Maintenance of a stopped service's database: deleted bytes leave the disk, because its files are rewritten."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mnemesh_kit.config import StartupError
from mnemesh_kit.sql import Database, SqlConfig, open_database
from mnemesh_kit.sql.postgresql import PostgresUrl, is_postgresql
from mnemesh_kit.time import Clock, SystemClock


@dataclass(frozen=True, slots=True)
class RewrittenDatabase:
    """The result of a rewrite: the database, and the size of its files before and after."""

    name: str
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        """Returns the result as a line of a report."""
        return f"{self.name}: {megabytes(self.bytes_before)} before, {megabytes(self.bytes_after)} now"


def require_unused(url: str) -> None:
    """Checks that no other process has an SQLite database open. Does nothing for PostgreSQL.

    Raises:
        StartupError: another process uses the database.
    """
    if is_postgresql(url):
        return
    path = Path(sa.make_url(url).database or "")
    if not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
            # In WAL mode, every open connection holds a shared lock, even if it is idle.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise StartupError(f"The database {path} is in use by another process.") from error


async def rewrite_database(url: str, tables: Sequence[str], *, sqlite_first: Sequence[str] = ()) -> RewrittenDatabase:
    """Removes the bytes of deleted rows from the files of a database that no other process uses.

    Args:
        url: the database, as for `Database.open`.
        tables: the names of the tables that PostgreSQL rewrites; an SQLite file is rewritten as a whole.
        sqlite_first: statements that SQLite runs before, such as the rebuild of a full-text index.

    Raises:
        StartupError: another process uses the database.
    """
    if is_postgresql(url):
        return await asyncio.to_thread(_rewrite_postgresql, PostgresUrl.parse(url), tables)
    return await asyncio.to_thread(_rewrite_sqlite, Path(sa.make_url(url).database or ""), sqlite_first)


def megabytes(size: int) -> str:
    """Returns a size in bytes as a report shows it."""
    return f"{size / 1_000_000:.2f} MB"


def _rewrite_sqlite(path: Path, first: Sequence[str]) -> RewrittenDatabase:
    before = _size(path)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
            connection.execute("PRAGMA secure_delete=ON")
            for statement in first:
                connection.execute(statement)
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        raise StartupError(f"The database {path} cannot be rewritten: {error}.") from error
    if busy:
        raise StartupError(
            f"The database {path} is in use by another process. Stop it first; the write-ahead log was not emptied."
        )
    return RewrittenDatabase(path.name, before, _size(path))


def _rewrite_postgresql(url: PostgresUrl, tables: Sequence[str]) -> RewrittenDatabase:
    """Rewrites the given tables. The server's write-ahead log follows its own settings."""
    size = "SELECT pg_database_size(current_database())"
    with url.connect(None, keeps_statements=False) as connection:
        before = int(connection.execute(size).fetchall()[0][0])
        for name in tables:
            connection.execute(f'VACUUM (FULL, ANALYZE) "{name}"')
        after = int(connection.execute(size).fetchall()[0][0])
    return RewrittenDatabase(f"PostgreSQL database {url.database}", before, after)


def _size(path: Path) -> int:
    files = [path, path.with_name(f"{path.name}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())


async def maintain_database(
    config: SqlConfig,
    package: str,
    purge: Callable[[Database], AsyncIterator[str]],
    *,
    further_tables: Sequence[str] = (),
    sqlite_first: Sequence[str] = (),
) -> AsyncIterator[str]:
    """Migrates and purges the database of a stopped service, then rewrites its files.

    Args:
        config: the service's settings.
        package: the service's package, whose `store` has the tables and the revisions.
        purge: deletes what has expired, and yields a line of the report for each kind.
        further_tables: the names of tables that PostgreSQL rewrites, too, and that `store.tables` does not declare.
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
    tables = (*import_module(f"{package}.store.tables").metadata.tables, *further_tables)
    yield str(await rewrite_database(config.database, tables, sqlite_first=sqlite_first))


Purge = Callable[[Any, Database, Clock], AsyncIterator[str]]
"""Deletes what has expired, by the settings and the time. Yields a line for each thing that was done."""


def maintenance_of(package: str) -> Callable[[Purge], Callable[..., AsyncIterator[str]]]:
    """Makes `maintain(config, *, clock=None)` of a service from the function that purges its open database.

    See `maintain_database` for what it yields and raises.
    """

    def decorated(purge: Purge) -> Callable[..., AsyncIterator[str]]:
        def maintain(config: SqlConfig, *, clock: Clock | None = None) -> AsyncIterator[str]:
            at = clock or SystemClock()
            return maintain_database(config, package, lambda database: purge(config, database, at))

        return maintain

    return decorated
