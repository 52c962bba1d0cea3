"""Group commit on SQLite: one thread writes, and one flush of the log makes all writes durable that waited together.

In WAL mode with `synchronous=NORMAL`, a commit writes to the log without flushing it. The writer flushes the log itself
before it returns the results, so a power failure loses only writes whose result was not returned. While the disk
flushes, further writes queue up; they are executed together and share the next flush. SQLite still flushes the log
before each checkpoint, so the database file never refers to missing pages.

After a failed flush, the kernel may count the lost pages of the log as written, so that the next flush succeeds without
them. The writer therefore moves the log into the database file and empties it before it trusts a flush again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import structlog

from mnemesh_kit.metrics import Counter
from mnemesh_kit.sql.calls import Call, deliver
from mnemesh_kit.sql.errors import from_os_error

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
        """Closes the file."""
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
