"""Rewrites a database, because SQL engines keep what was deleted in free pages, dead rows, word indexes and logs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from mnemesh_kit.config import StartupError


@dataclass(frozen=True, slots=True)
class RewrittenDatabase:
    """What it was, and what its files take before and after."""

    name: str
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        """As a report has it."""
        return f"{self.name}: {megabytes(self.bytes_before)} before, {megabytes(self.bytes_after)} now"


def require_unused(url: str) -> None:
    """Sees to it that no other process has an SQLite database open; a PostgreSQL server is shared by nature.

    Raises:
        StartupError: one has.
    """
    parsed = sa.make_url(url)
    path = Path(parsed.database or "")
    if parsed.get_backend_name() != "sqlite" or not path.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
            # Every connection to a database in WAL mode holds a shared lock, also one that does nothing.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        raise StartupError(f"The database {path} is in use by another process.") from error


async def rewrite_database(url: str, tables: Sequence[str], *, sqlite_first: Sequence[str] = ()) -> RewrittenDatabase:
    """Gives back the bytes of everything that was deleted. Nobody else may use the database meanwhile.

    Args:
        url: as of `Database.open`.
        tables: the names of those that PostgreSQL rewrites; an SQLite file is rewritten whole.
        sqlite_first: statements for SQLite to run before, such as the rebuilding of a word index.

    Raises:
        StartupError: somebody uses it.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return await asyncio.to_thread(_rewrite_sqlite, Path(parsed.database or ""), sqlite_first)
    return await _rewrite_postgresql(parsed, tables)


def megabytes(size: int) -> str:
    """A size in bytes as a report has it."""
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
        raise StartupError(f"The database {path} could not be rewritten: {error}.") from error
    if busy:
        raise StartupError(f"The database {path} is in use by another process; its log was not emptied.")
    return RewrittenDatabase(path.name, before, _size(path))


async def _rewrite_postgresql(url: sa.URL, tables: Sequence[str]) -> RewrittenDatabase:
    """Rewrites our tables. The server's own log goes by its own settings."""
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT")
    size = sa.select(sa.func.pg_database_size(sa.func.current_database()))
    try:
        async with engine.connect() as connection:
            before = int((await connection.execute(size)).scalar_one())
            for name in tables:
                await connection.exec_driver_sql(f'VACUUM (FULL, ANALYZE) "{name}"')
            after = int((await connection.execute(size)).scalar_one())
    finally:
        await engine.dispose()
    return RewrittenDatabase(f"PostgreSQL database {url.database}", before, after)


def _size(path: Path) -> int:
    files = [path, path.with_name(f"{path.name}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
