"""Rewrites the database, because SQL engines keep what was deleted in free pages, dead rows, word indexes and logs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from engram_kit.config import StartupError
from sqlalchemy.ext.asyncio import create_async_engine

from engram_recall.store import memory_tables  # noqa: F401  (its tables are among those of `metadata`)
from engram_recall.store.tables import metadata

WORDS = "message_words"


@dataclass(frozen=True, slots=True)
class RewrittenDatabase:
    """What it was, and what its files take before and after."""

    name: str
    bytes_before: int
    bytes_after: int


async def rewrite_database(url: str) -> RewrittenDatabase:
    """Give back the bytes of everything that was deleted. Nobody else may use the database meanwhile.

    Raises:
        StartupError: somebody does.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return await asyncio.to_thread(_rewrite_sqlite, Path(parsed.database or ""))
    return await _rewrite_postgresql(parsed)


def _rewrite_sqlite(path: Path) -> RewrittenDatabase:
    before = _size(path)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as connection:
            connection.execute("PRAGMA secure_delete=ON")
            # Words of deleted rows stay in the segments of the index until it is made anew from the rows that are left.
            connection.execute("INSERT INTO message_words(message_words) VALUES ('rebuild')")
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError as error:
        raise StartupError(f"The database {path} could not be rewritten: {error}.") from error
    if busy:
        raise StartupError(f"The database {path} is in use by another process; its log was not emptied.")
    return RewrittenDatabase(path.name, before, _size(path))


async def _rewrite_postgresql(url: sa.URL) -> RewrittenDatabase:
    """Rewrites our tables. The server's own log goes by its own settings."""
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"), isolation_level="AUTOCOMMIT")
    size = sa.select(sa.func.pg_database_size(sa.func.current_database()))
    try:
        async with engine.connect() as connection:
            before = int((await connection.execute(size)).scalar_one())
            for name in (WORDS, *(table.name for table in metadata.sorted_tables)):
                await connection.exec_driver_sql(f'VACUUM (FULL, ANALYZE) "{name}"')
            after = int((await connection.execute(size)).scalar_one())
    finally:
        await engine.dispose()
    return RewrittenDatabase(f"PostgreSQL database {url.database}", before, after)


def _size(path: Path) -> int:
    files = [path, path.with_name(f"{path.name}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
