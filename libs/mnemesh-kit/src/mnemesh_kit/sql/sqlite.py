"""SQLite: one thread writes and a few read, each with its own connection. A transaction runs in one such thread."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

import sqlalchemy as sa

from mnemesh_kit.backoff import Backoff
from mnemesh_kit.sql.calls import Threads
from mnemesh_kit.sql.errors import DatabaseFull, DatabaseUnavailable, from_sqlite
from mnemesh_kit.sql.group_commit import GroupWriter, LogFile
from mnemesh_kit.sql.readahead import Readahead

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 5_000
WRITE_ATTEMPTS: Final = 5
BUSY_BACKOFF: Final = Backoff(first=0.02, maximum=0.1, factor=1.5, jitter=0.75)
CACHE_KILOBYTES: Final = 8_192
"""The page cache of each connection. SQLite's default of 2 MB is too small: a full-text search reads pages again."""
LOG_BYTES: Final = 64 << 20
"""The size to which a log is cut when it starts over. It grows beyond while a long read needs it."""
_RETRIED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteEngine:
    """A database file in WAL mode."""

    dialect = "sqlite"
    start_errors: tuple[type[Exception], ...] = (OSError, sa.exc.DBAPIError, DatabaseUnavailable, DatabaseFull)

    def __init__(self, url: sa.URL, *, synchronous: str, readers: int) -> None:
        if not url.database or url.database == ":memory:":
            raise ValueError("An SQLite database must be a file: readers and the writer have different connections.")
        self._readahead = Readahead(Path(url.database))
        self._written = _Connections(_engine(url, "IMMEDIATE"))
        self._read = _Connections(_engine(url, "DEFERRED", query_only=True), self._readahead, query_only=True)
        log = LogFile(url.database) if synchronous == "FULL" else None
        self._writer = GroupWriter(self._written.changes, log, self._written.empty_log)
        self._readers = Threads(readers, "sqlite-reader")

    async def read(self, fn: Callable[[sa.Connection], T], *, snapshot: bool = True) -> T:  # noqa: ARG002
        """Runs `fn` in a deferred transaction of a reader."""
        return await self._readers.submit(partial(self._read.run, fn))

    async def write(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` under BEGIN IMMEDIATE, after all earlier writes."""
        return await self._writer.submit(partial(self._written.run, fn))

    async def alter(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` as a write: SQLite's schema changes are transactional. A checkpoint makes it durable."""
        result = await self.write(fn)
        await self._writer.submit(self._written.checkpoint)
        return result

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        await asyncio.gather(self._writer.close(), self._readers.close())
        self._read.close()
        self._written.close()
        self._readahead.close()


class _Connections:
    """One connection per thread, and the execution of transactions on it."""

    def __init__(self, engine: sa.Engine, readahead: Readahead | None = None, *, query_only: bool = False) -> None:
        self._engine = engine
        self._readahead = readahead
        self._query_only = query_only
        self._local = threading.local()
        self._open: list[sa.Connection] = []

    def run(self, fn: Callable[[sa.Connection], T]) -> T:
        """Runs `fn` in a transaction on this thread's connection. Repeats it while another process writes."""
        for attempt in range(1, WRITE_ATTEMPTS + 1):
            try:
                connection = self._connection()
                with connection.begin():
                    return fn(connection)
            except sa.exc.OperationalError as error:
                code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
                if code not in _RETRIED:
                    if (known := from_sqlite(error, query_only=self._query_only)) is not None:
                        raise known from error
                    raise
                if attempt == WRITE_ATTEMPTS:
                    raise DatabaseUnavailable(
                        "The database is busy with the writes of another process. Retry later."
                    ) from error
                time.sleep(BUSY_BACKOFF.delay(attempt))
        raise AssertionError("unreachable")

    def changes(self) -> int:
        """Returns the number of rows that this thread's connection has changed; 0 before it is opened."""
        driver: sqlite3.Connection | None = getattr(self._local, "driver", None)
        return 0 if driver is None else driver.total_changes

    def checkpoint(self) -> None:
        """Moves the log to the database file, which flushes both."""
        self._connection()
        self._local.driver.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def empty_log(self) -> None:
        """Moves the log to the database file, flushes that, and empties the log.

        Raises:
            OSError: the disk refuses, or a reader still needs the log.
        """
        try:
            (is_busy, _, _) = self._local.driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            raise OSError(errno.EIO, str(error)) from error
        if is_busy:
            raise OSError(errno.EBUSY, "the log is in use by a reader")

    def _connection(self) -> sa.Connection:
        connection: sa.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._engine.connect()
            self._local.driver = connection.connection.driver_connection
            if self._readahead is not None:
                self._readahead.attach(connection)
            self._open.append(connection)
        return connection

    def close(self) -> None:
        """Closes the connections. Their threads have ended."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._engine.dispose()


def _engine(url: sa.URL, begin: str, *, query_only: bool = False) -> sa.Engine:
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        poolclass=sa.NullPool,
        hide_parameters=True,
        # The driver would begin a transaction only before the first write, not the first read: the dialect does it.
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
    )
    pragmas = (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=NORMAL",  # with FULL, the writer flushes the log: see group_commit
        "PRAGMA foreign_keys=ON",
        "PRAGMA temp_store=MEMORY",
        f"PRAGMA cache_size=-{CACHE_KILOBYTES}",
        f"PRAGMA journal_size_limit={LOG_BYTES}",
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
