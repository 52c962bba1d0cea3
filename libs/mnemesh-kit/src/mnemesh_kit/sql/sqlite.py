"""SQLite: one thread writes and a few read, each with its own connection. A transaction runs in one such thread."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, cast

import sqlalchemy as sa

from mnemesh_kit.backoff import Backoff
from mnemesh_kit.errors import Unavailable

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 5_000
WRITE_ATTEMPTS: Final = 5
BUSY_BACKOFF: Final = Backoff(first=0.02, maximum=0.1, factor=1.5, jitter=0.75)
CACHE_KILOBYTES: Final = 8_192
"""The page cache of each connection. SQLite's default of 2 MB is too small: a full-text search reads pages again."""
_RETRIED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteEngine:
    """A database file in WAL mode."""

    dialect = "sqlite"

    def __init__(self, url: sa.URL, *, synchronous: str, readers: int) -> None:
        if not url.database or url.database == ":memory:":
            raise ValueError("An SQLite database must be a file: readers and the writer have different connections.")
        self._writer = _Lane(_engine(url, "IMMEDIATE", synchronous), threads=1, name="sqlite-writer")
        self._reader = _Lane(
            _engine(url, "DEFERRED", synchronous, query_only=True), threads=readers, name="sqlite-reader"
        )

    async def read(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a deferred transaction of a reader."""
        return await self._reader.submit(fn)

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` under BEGIN IMMEDIATE, after all earlier writes."""
        return await self._writer.submit(fn)

    async def alter(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` as a write: SQLite's schema changes are transactional."""
        return await self._writer.submit(fn)

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        await asyncio.gather(self._reader.close(), self._writer.close())


class _Lane:
    """Threads with one connection each, and their common queue."""

    def __init__(self, engine: sa.Engine, *, threads: int, name: str) -> None:
        self._engine = engine
        self._local = threading.local()
        self._open: list[sa.Connection] = []
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def submit(self, fn: Callable[[sa.Connection], T]) -> T:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, self._run, fn)

    def _run(self, fn: Callable[[sa.Connection], T]) -> T:
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                connection = self._connection()
                with connection.begin():
                    return fn(connection)
            except sa.exc.OperationalError as error:
                code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
                if code not in _RETRIED:
                    raise
                if attempt == WRITE_ATTEMPTS:
                    raise Unavailable(
                        "The database is busy with the writes of another process. Retry later."
                    ) from error
                time.sleep(BUSY_BACKOFF.delay(attempt))
        raise AssertionError("unreachable")

    def _connection(self) -> sa.Connection:
        connection: sa.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._engine.connect()
            self._open.append(connection)
        return connection

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown, wait=True)
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._engine.dispose()


def _engine(url: sa.URL, begin: str, synchronous: str, *, query_only: bool = False) -> sa.Engine:
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        poolclass=sa.NullPool,
        # The driver would begin a transaction only before the first write, not the first read: the dialect does it.
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
    )
    pragmas = (
        "PRAGMA journal_mode=WAL",
        f"PRAGMA synchronous={synchronous}",
        "PRAGMA foreign_keys=ON",
        "PRAGMA temp_store=MEMORY",
        f"PRAGMA cache_size=-{CACHE_KILOBYTES}",
        f"PRAGMA query_only={'ON' if query_only else 'OFF'}",
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in pragmas:
            connection.execute(pragma)

    statement = f"BEGIN {begin}"

    def _begin(connection: sa.PoolProxiedConnection) -> None:
        cast("sqlite3.Connection", connection.driver_connection).execute(statement)

    # A listener of the event "begin" would do the same, but an engine with listeners calls them for each statement.
    engine.dialect.do_begin = _begin  # type: ignore[assignment, method-assign]
    return engine
