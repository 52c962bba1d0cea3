"""Checks of a FlatIndex's file, and its errors as those of the library."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from mnemesh_retrieval.errors import IndexDamaged, IndexFull, RetrievalError, VectorIndexError
from mnemesh_retrieval.flat import file
from mnemesh_retrieval.flat.schema import parts
from mnemesh_retrieval.flat.segment import CAPACITY, HEADER, Segment

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
