"""The SQLite file of a FlatIndex: its tables, its connections, and the reads and writes of one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from mnemesh_retrieval.flat.filters import SegmentFilter
from mnemesh_retrieval.flat.segment import Entry, Segment, SegmentBatch

T = TypeVar("T")
NAME: Final = "vectors.db"
VERSION: Final = 2
"""The version of the tables. A file of an unknown version is replaced by an empty one."""
_TABLES: Final = f"""
    CREATE TABLE collections (collection INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
    CREATE TABLE segments (
        segment INTEGER PRIMARY KEY, collection INTEGER NOT NULL, tenant TEXT NOT NULL,
        oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
        labels TEXT NOT NULL, headers BLOB NOT NULL, vectors BLOB NOT NULL
    );
    CREATE INDEX ix_segments_tenant ON segments (collection, tenant, segment);
    CREATE TABLE segment_labels (
        collection INTEGER NOT NULL, label TEXT NOT NULL, newest INTEGER NOT NULL, segment INTEGER NOT NULL,
        oldest INTEGER NOT NULL, PRIMARY KEY (collection, label, newest, segment)
    ) WITHOUT ROWID;
    CREATE TABLE points (
        collection INTEGER NOT NULL, id BLOB NOT NULL, segment INTEGER NOT NULL, PRIMARY KEY (collection, id)
    ) WITHOUT ROWID;
    PRAGMA user_version = {VERSION};
"""
_UPGRADE_FROM_1: Final = f"""
    DROP INDEX ix_blocks_tenant;
    ALTER TABLE blocks RENAME TO segments;
    ALTER TABLE segments RENAME COLUMN block TO segment;
    ALTER TABLE segments RENAME COLUMN head TO headers;
    CREATE INDEX ix_segments_tenant ON segments (collection, tenant, segment);
    ALTER TABLE block_labels RENAME TO segment_labels;
    ALTER TABLE segment_labels RENAME COLUMN block TO segment;
    ALTER TABLE points RENAME COLUMN block TO segment;
    PRAGMA user_version = {VERSION};
"""
"""Version 1 has other names for the same tables."""
_CACHE_KILOBYTES: Final = 4_096
_IDS_PER_STATEMENT: Final = 500
_COUNTED_SEGMENTS: Final = 1_000
"""Segments are counted up to this number to find the rarest of several labels."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment as it is in the file."""

    number: int
    tenant: str
    segment: Segment


def open_writer(directory: Path) -> sqlite3.Connection:
    """Opens the connection that writes. Creates or upgrades the file if needed."""
    path = directory / NAME
    connection = _connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 1:
        connection.executescript(f"BEGIN; {_UPGRADE_FROM_1} COMMIT;")
    elif version != VERSION:
        connection.close()
        for file in (path, path.with_name(f"{NAME}-wal"), path.with_name(f"{NAME}-shm")):
            file.unlink(missing_ok=True)
        connection = _connect(path)
        connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
    return connection


def open_reader(directory: Path) -> sqlite3.Connection:
    """Opens a connection that only reads."""
    connection = _connect(directory / NAME)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in (
        # For a new file. A segment takes three pages of this size, and five of the default size.
        "page_size = 8192",
        "journal_mode = WAL",
        # A crash of the process loses nothing; a power loss loses what no checkpoint has written to disk.
        "synchronous = NORMAL",
        "secure_delete = ON",
        f"cache_size = -{_CACHE_KILOBYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def candidate_segments(conn: sqlite3.Connection, collection: int, filter_: SegmentFilter, limit: int = -1) -> list[int]:
    """Returns the segments that may contain a match, those with the newest points first; all if `limit` is -1."""
    if filter_.ids is not None:
        return segments_of(conn, collection, filter_.ids)
    if not filter_.labels:
        rows = conn.execute("SELECT segment FROM segments WHERE collection = ? ORDER BY newest DESC", (collection,))
        return [number for (number,) in rows][: limit if limit >= 0 else None]
    if not all(filter_.labels):
        return []
    labels = filter_.labels[0]
    if len(filter_.labels) > 1:
        labels = min(filter_.labels, key=lambda group: _count_segments(conn, collection, group))
    marks = ", ".join("?" * len(labels))
    rows = conn.execute(
        "SELECT segment, max(newest) AS latest FROM segment_labels"  # noqa: S608
        f" WHERE collection = ? AND label IN ({marks}) AND newest >= ? AND oldest < ?"
        " GROUP BY segment ORDER BY latest DESC, segment DESC LIMIT ?"
        if len(labels) > 1
        else "SELECT segment, newest FROM segment_labels"
        " WHERE collection = ? AND label = ? AND newest >= ? AND oldest < ?"
        " ORDER BY newest DESC, segment DESC LIMIT ?",
        (collection, *labels, filter_.since, filter_.before, limit),
    )
    return [number for number, _ in rows]


def segments_of(conn: sqlite3.Connection, collection: int, ids: Iterable[bytes]) -> list[int]:
    """Returns the segments that contain these points."""
    return list(dict.fromkeys(_segment_by_id(conn, collection, ids).values()))


def read(conn: sqlite3.Connection, number: int, dimension: int) -> StoredSegment:
    """Reads a segment."""
    tenant, labels, headers, vectors = conn.execute(
        "SELECT tenant, labels, headers, vectors FROM segments WHERE segment = ?", (number,)
    ).fetchone()
    return StoredSegment(number, tenant, Segment.from_row(labels, headers, vectors, dimension))


def read_batch(
    conn: sqlite3.Connection, numbers: Sequence[int], dimension: int, *, vectors: bool = True
) -> SegmentBatch:
    """Reads segments in any order, with or without their vectors."""
    column = "vectors" if vectors else "x''"
    marks = ", ".join("?" * len(numbers))
    rows = conn.execute(f"SELECT labels, headers, {column} FROM segments WHERE segment IN ({marks})", numbers)  # noqa: S608
    return SegmentBatch.from_rows(rows.fetchall(), dimension)


def insert(conn: sqlite3.Connection, collection: int, dimension: int, tenant: str, entries: Sequence[Entry]) -> None:
    """Adds new points to the newest segment of their tenant, and to new segments once it is full."""
    last = conn.execute(
        "SELECT max(segment) FROM segments WHERE collection = ? AND tenant = ?", (collection, tenant)
    ).fetchone()[0]
    tail = read(conn, last, dimension) if last is not None else None
    remaining = list(entries)
    while remaining:
        segment = tail.segment if tail is not None else Segment.empty(dimension)
        count = segment.fitting(remaining)
        if count:
            number = _save(conn, collection, tail, tenant, segment.extended(remaining[:count]))
            conn.executemany(
                "INSERT INTO points (collection, id, segment) VALUES (?, ?, ?)",
                [(collection, entry.id, number) for entry in remaining[:count]],
            )
        remaining, tail = remaining[count:], None


def delete(conn: sqlite3.Connection, collection: int, dimension: int, ids: Sequence[bytes]) -> None:
    """Deletes the points that exist among these."""
    by_segment: dict[int, list[bytes]] = {}
    for id_, number in _segment_by_id(conn, collection, ids).items():
        by_segment.setdefault(number, []).append(id_)
    for number, deleted in by_segment.items():
        stored = read(conn, number, dimension)
        _save(conn, collection, stored, stored.tenant, stored.segment.without(deleted))
        rows = [(collection, id_) for id_ in deleted]
        conn.executemany("DELETE FROM points WHERE collection = ? AND id = ?", rows)


def drop(conn: sqlite3.Connection, collection: int) -> None:
    """Deletes a collection."""
    for table in ("points", "segment_labels", "segments", "collections"):
        conn.execute(f"DELETE FROM {table} WHERE collection = ?", (collection,))  # noqa: S608


def _save(conn: sqlite3.Connection, collection: int, old: StoredSegment | None, tenant: str, segment: Segment) -> int:
    """Writes a segment in place of `old`, or as a new one; deletes it if it is empty. Returns its number."""
    number = old.number if old is not None else None
    labels_changed = old is None or _label_key(old.segment) != _label_key(segment)
    if old is not None and labels_changed:
        stale = [(collection, label, old.segment.newest, old.number) for label in old.segment.labels]
        conn.executemany(
            "DELETE FROM segment_labels WHERE collection = ? AND label = ? AND newest = ? AND segment = ?", stale
        )
    if not len(segment):
        conn.execute("DELETE FROM segments WHERE segment = ?", (number,))
        return 0
    values = (segment.oldest, segment.newest, *segment.to_row())
    if old is None:
        number = conn.execute(
            "INSERT INTO segments (collection, tenant, oldest, newest, labels, headers, vectors)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (collection, tenant, *values),
        ).lastrowid
    else:
        conn.execute(
            "UPDATE segments SET oldest = ?, newest = ?, labels = ?, headers = ?, vectors = ? WHERE segment = ?",
            (*values, number),
        )
    assert number is not None  # noqa: S101 - an insert has a row
    if labels_changed:
        conn.executemany(
            "INSERT INTO segment_labels (collection, label, newest, segment, oldest) VALUES (?, ?, ?, ?, ?)",
            [(collection, label, segment.newest, number, segment.oldest) for label in segment.labels],
        )
    return number


def _label_key(segment: Segment) -> tuple[object, ...]:
    """Returns the values that the rows of the segment's labels contain."""
    return (segment.labels, segment.oldest, segment.newest) if len(segment) else (segment.labels,)


def _count_segments(conn: sqlite3.Connection, collection: int, labels: Sequence[str]) -> int:
    marks = ", ".join("?" * len(labels))
    row = conn.execute(
        "SELECT count(*) FROM (SELECT 1 FROM segment_labels"  # noqa: S608
        f" WHERE collection = ? AND label IN ({marks}) LIMIT {_COUNTED_SEGMENTS})",
        (collection, *labels),
    ).fetchone()
    return int(row[0])


def _segment_by_id(conn: sqlite3.Connection, collection: int, ids: Iterable[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    wanted = list(ids)
    for start in range(0, len(wanted), _IDS_PER_STATEMENT):
        some = wanted[start : start + _IDS_PER_STATEMENT]
        marks = ", ".join("?" * len(some))
        rows = conn.execute(
            f"SELECT id, segment FROM points WHERE collection = ? AND id IN ({marks})",  # noqa: S608
            (collection, *some),
        )
        found.update(rows)
    return found


def in_transaction(conn: sqlite3.Connection, begin: str, act: Callable[[sqlite3.Connection], T]) -> T:
    """Runs `act` in a transaction that `begin` starts; rolls it back if `act` raises."""
    conn.execute(begin)
    try:
        result = act(conn)
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise
    return result
