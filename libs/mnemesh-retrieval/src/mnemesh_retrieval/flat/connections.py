"""The threads and connections of a FlatIndex's file, its errors, its checks, and its rewrite.

One thread writes, two read, and one checks.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np

from mnemesh_retrieval.errors import IndexClosed, IndexDamaged, IndexFull, RetrievalError, VectorIndexError
from mnemesh_retrieval.flat import file
from mnemesh_retrieval.flat.file import CAPACITY, HEADER, Segment, parts
from mnemesh_retrieval.index_directory import discard, move_aside

_PAGE: Final = 8
"""The number of segments that are verified at once. It takes some milliseconds."""
_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@contextmanager
def library_errors() -> Iterator[None]:
    """Raises the library's errors in place of those of SQLite."""
    try:
        yield
    except RetrievalError:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _DAMAGE or "decode to UTF-8" in str(error):
            raise IndexDamaged(f"the vector index is damaged: {error}") from error
        kind = IndexFull if code == sqlite3.SQLITE_FULL else VectorIndexError
        raise kind(f"the vector index failed: {error}") from error


def verify_pages(conn: sqlite3.Connection) -> None:
    """Raises IndexDamaged if the structure of the file is damaged."""
    for (problem,) in conn.execute("PRAGMA quick_check(1)").fetchall():
        if problem != "ok":
            raise IndexDamaged(f"the vector index is damaged: {problem}")


def verify_segments(conn: sqlite3.Connection, collection: int, dimension: int, after: int) -> int | None:
    """Reads the next segments of a collection after a number. Returns the number of the last one, or None at the end.

    Raises:
        IndexDamaged: a segment differs from its checksum, or is not listed with all of its points and labels.
    """
    rows = conn.execute(
        "SELECT segment, oldest, newest, labels, headers, vectors, checksum FROM segments"
        " WHERE segment > ? AND collection = ? ORDER BY segment LIMIT ?",
        (after, collection, _PAGE),
    ).fetchall()
    for number, oldest, newest, labels_column, headers, vectors, checksum in rows:
        file.require_intact(number, labels_column, headers, vectors, checksum)
        segment = _decoded(number, (labels_column, headers, vectors), dimension)
        if (oldest, newest) != (segment.oldest, segment.newest):
            raise IndexDamaged(f"the times of segment {number} differ from those of its points")
        _require_listed(conn, collection, number, segment)
    return rows[-1][0] if rows else None


def verify_lists(conn: sqlite3.Connection, collection: int) -> None:
    """Raises IndexDamaged if the lists of points or labels have other numbers of entries than the segments."""
    held = conn.execute(
        f"SELECT coalesce(sum(length(headers)) / {HEADER.itemsize}, 0), coalesce(sum(json_array_length(labels)), 0)"  # noqa: S608
        " FROM segments WHERE collection = ?",
        (collection,),
    ).fetchone()
    labels = conn.execute("SELECT count(*) FROM segment_labels WHERE collection = ?", (collection,)).fetchone()[0]
    if (file.count_points(conn, collection), labels) != held:
        raise IndexDamaged("the lists of points and labels differ from the segments")


def _decoded(number: int, columns: tuple[str, bytes, bytes], dimension: int) -> Segment:
    try:
        segment = Segment.from_row(*columns, dimension)
    except (ValueError, TypeError) as error:
        raise IndexDamaged(f"segment {number} cannot be read: {error}") from error
    if not 0 < len(segment) <= CAPACITY or len(segment) != len(segment.codes):
        raise IndexDamaged(f"segment {number} has {len(segment)} points and {len(segment.codes)} vectors")
    if not np.isfinite(segment.headers["inverse"]).all():
        raise IndexDamaged(f"segment {number} has a length that is not a number")
    return segment


def _require_listed(conn: sqlite3.Connection, collection: int, number: int, segment: Segment) -> None:
    """Raises IndexDamaged if the lists of points or labels lack an entry of the segment."""
    if file.listed(conn, collection, segment.ids()) != dict.fromkeys(segment.ids(), number):
        raise IndexDamaged(f"the list of points differs from segment {number}")
    for label in segment.labels:
        listed = conn.execute(
            "SELECT oldest FROM segment_labels WHERE collection = ? AND label = ? AND newest = ? AND segment = ?",
            (collection, label, segment.newest, number),
        ).fetchone()
        if listed != (segment.oldest,):
            raise IndexDamaged(f"the list of labels differs from segment {number}")


def sync(directory: Path) -> None:
    """Flushes the log of the file to stable storage. SQLite itself does it only with a checkpoint that moves pages."""
    _, log, _ = parts(directory)
    for path in (log, directory):
        if path.exists():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


T = TypeVar("T")
READER_THREADS: Final = 2


class Connections:
    """The connections to one file. Each thread has its own, and opens it when it first needs it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vectors-writer")
        self._reading = ThreadPoolExecutor(max_workers=READER_THREADS, thread_name_prefix="vectors-reader")
        self._checking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vectors-checker")
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._generation = 0
        self._dirty = False
        self._closed = False

    async def read(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` in a transaction that only reads."""
        return await self._on(self._reading, lambda conn: file.in_transaction(conn, "BEGIN", act))

    async def check(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` in a transaction that only reads, however long it takes: reads do not wait for it."""
        return await self._on(self._checking, lambda conn: file.in_transaction(conn, "BEGIN", act))

    async def write(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` in a transaction, after all earlier writes."""

        def write(conn: sqlite3.Connection) -> T:
            self._dirty = True
            return file.in_transaction(conn, "BEGIN IMMEDIATE", act)

        return await self._on(self._writing, write)

    async def alone(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `act` after all earlier writes, without a transaction."""
        return await self._on(self._writing, act)

    async def flush(self) -> None:
        """Flushes all completed writes to stable storage."""

        def flush(conn: sqlite3.Connection) -> None:
            if self._dirty:
                sync(self._directory)
                conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._dirty = False

        await self._on(self._writing, flush)

    async def move_aside(self) -> Path | None:
        """Moves the file out of the way; the next write creates another. Returns the folder that it is in now."""

        def move() -> Path | None:
            self._close_own()
            try:
                return move_aside(self._directory, file.parts(self._directory))
            finally:
                # Other threads reopen their connections before they use them again. Before the move, one could open the
                # old file as one of the new generation.
                self._generation += 1

        self.require_usable()
        return await asyncio.get_running_loop().run_in_executor(self._writing, move)

    async def close(self) -> None:
        """Waits for running transactions and closes the connections."""
        self._closed = True
        for readers in (self._checking, self._reading):
            await asyncio.to_thread(readers.shutdown, wait=True)
        await asyncio.to_thread(self._writing.shutdown, wait=True)
        for connection in reversed(self._open):  # the writer, closed last, moves the log into the file
            connection.close()

    def require_usable(self) -> None:
        """Raises IndexClosed after `close`, and in a forked child."""
        if self._closed:
            raise IndexClosed("the vector index is closed")
        if os.getpid() != self._pid:
            raise IndexClosed("the vector index belongs to the parent process; a forked child cannot use it")

    async def _on(self, threads: ThreadPoolExecutor, act: Callable[[sqlite3.Connection], T]) -> T:
        self.require_usable()

        def run() -> T:
            with library_errors():
                return act(self._own(threads is self._writing))

        return await asyncio.get_running_loop().run_in_executor(threads, run)

    def _own(self, writes: bool) -> sqlite3.Connection:
        """Returns the connection of this thread."""
        if getattr(self._local, "generation", None) != self._generation:
            self._close_own()
            generation = self._generation
            connection = (file.open_writer if writes else file.open_reader)(self._directory)
            self._local.connection, self._local.generation = connection, generation
            self._open.append(connection)
        return cast("sqlite3.Connection", self._local.connection)

    def _close_own(self) -> None:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = self._local.generation = None
            self._open.remove(connection)
            connection.close()


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of a rewrite. Sizes are those of the file and its log."""

    points: dict[str, int]
    """The number of points of each collection."""
    bytes_before: int
    bytes_after: int


def rewritten(conn: sqlite3.Connection, directory: Path) -> RewriteReport:
    """Rewrites the file, empties its log, and deletes damaged files that were moved aside. See FlatIndex.rewrite."""
    before = _size(directory)
    discard(directory)
    # VACUUM writes to the log first, so the log is emptied after it, too.
    for command in ("wal_checkpoint(TRUNCATE)", None, "wal_checkpoint(TRUNCATE)"):
        conn.execute(f"PRAGMA {command}" if command else "VACUUM").fetchall()
    points = conn.execute(
        "SELECT name, (SELECT count(*) FROM points p WHERE p.collection = c.collection) FROM collections c"
    ).fetchall()
    return RewriteReport(dict(points), before, _size(directory))


def _size(directory: Path) -> int:
    return sum(part.stat().st_size for part in directory.glob(f"{file.NAME}*"))
