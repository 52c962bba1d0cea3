"""SQLite: one thread writes and a few read, each with its own connection. A transaction runs in one such thread."""

import asyncio
import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar, cast

import sqlalchemy as sa
import structlog

from mnemesh_kit.metrics import Counter
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql.errors import DatabaseFull, DatabaseUnavailable, from_os_error, from_sqlite
from mnemesh_kit.sql.threads import Call, Threads, deliver

T = TypeVar("T")


_log = structlog.get_logger("mnemesh.sql")

FLUSHES: Final = Counter("mnemesh_sqlite_flushes", "Flushes of SQLite's log to the disk by the writer.")
"""The flushes of this process. The ratio of write transactions to flushes is the size of a group."""
MAX_GROUP: Final = 32
"""The maximum number of writes that share a flush. It bounds the time that the first of them waits for the others."""


class LogFile:
    """The write-ahead log of a database file. It is opened at the first flush, after SQLite created it."""

    def __init__(self, database: str) -> None:
        self._path = f"{database}-wal"
        self._descriptor: int | None = None

    def flush(self) -> None:
        """Flushes the log to the disk. Blocks. Raises OSError."""
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            directory = os.open(Path(self._path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)  # the entry of the new file
            finally:
                os.close(directory)
        os.fdatasync(self._descriptor)
        FLUSHES.inc()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class GroupWriter:
    """Executes functions in order in one thread. Returns each result after the log was flushed.

    Example:
        >>> writer = GroupWriter(changes=lambda: connection.total_changes, log=LogFile("/var/lib/mnemesh/blocks.db"))
        >>> await writer.submit(lambda: insert_block(connection))
    """

    def __init__(
        self, changes: Callable[[], int], log: LogFile | None, empty_log: Callable[[], None] = lambda: None
    ) -> None:
        """Creates a writer. The thread starts with the first write.

        Args:
            changes: returns the number of rows that the connection has changed since it was opened. Called in the
                thread. A group that changed nothing is not flushed, unless the last flush failed.
            log: the log to flush; None flushes nothing.
            empty_log: moves the log into the database file, flushes that, and empties the log; raises OSError. Called
                in the thread after a flush failed.
        """
        self._changes = changes
        self._log = log
        self._empty_log = empty_log
        self._has_failed = False
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def submit(self, fn: Callable[[], T]) -> T:
        """Executes `fn` in the thread, with the caller's context variables, and returns its result.

        If the caller is cancelled, `fn` is executed nevertheless.

        Raises:
            DatabaseUnavailable, DatabaseFull: the log could not be flushed, so the result may not survive a power
                failure.
        """
        if self._is_closed:
            raise RuntimeError("The database is closed.")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sqlite-writer", daemon=True)
            self._thread.start()
        call = Call.of(fn)
        self._queue.put(call)
        result: T = await call.future
        return result

    async def close(self) -> None:
        """Waits for the submitted writes and ends the thread."""
        self._is_closed = True
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
        if self._log is not None:
            self._log.close()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None and self._execute_group(first):
            pass

    def _execute_group(self, first: Call) -> bool:
        """Executes a write and those that wait. Returns False if the writer was closed."""
        group = [first]
        is_open = True
        before = self._changes() if self._log is not None else 0
        first.execute()
        while self._log is not None and len(group) < MAX_GROUP:
            try:
                write = self._queue.get_nowait()
            except Empty:
                break
            if write is None:
                is_open = False
                break
            write.execute()
            group.append(write)
        # After a failed flush, a write that changes nothing may repeat one that is not durable yet.
        if self._log is not None and (self._has_failed or self._changes() != before):
            self._flush(self._log, group)
        deliver(group)
        return is_open

    def _flush(self, log: LogFile, group: list[Call]) -> None:
        try:
            if self._has_failed:
                self._empty_log()
            log.flush()
            self._has_failed = False
        except OSError as error:
            self._has_failed = True
            _log.error("sqlite_flush_failed", error=str(error), writes=len(group))
            for write in group:
                if write.error is None:
                    write.error = from_os_error(error, "could not be flushed to the disk")
                    write.error.__cause__ = error


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
        self._written = _Connections(_engine(url, "IMMEDIATE"))
        self._read = _Connections(_engine(url, "DEFERRED", query_only=True), query_only=True)
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


class _Connections:
    """One connection per thread, and the execution of transactions on it."""

    def __init__(self, engine: sa.Engine, *, query_only: bool = False) -> None:
        self._engine = engine
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
