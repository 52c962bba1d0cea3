"""The SQLite file of a FlatIndex: its tables, its connections, and the reads and writes of one transaction."""

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog
from mnemesh_kit.sql.sqlite import LOG_BYTES

from mnemesh_retrieval.errors import IndexDamaged
from mnemesh_retrieval.flat.segments import Codes, Entry, Segment, SegmentBatch, SegmentFilter, codes_from_row

_log = structlog.get_logger("mnemesh.retrieval")

NAME: Final = "vectors.db"
VERSION: Final = 5
"""The version of the file. A file of another version is replaced by an empty one, and its points are derived again."""
PAGE_BYTES: Final = 32_768
"""The size of SQLite's pages. A full segment of vectors of 256 numbers is one page, and a read of a page that is not
cached costs about as much as one of a small page."""
_TABLES: Final = f"""
    CREATE TABLE collections (collection INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL);
    CREATE TABLE segments (
        segment INTEGER PRIMARY KEY, collection INTEGER NOT NULL, tenant TEXT NOT NULL,
        oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
        labels TEXT NOT NULL, headers BLOB NOT NULL, vectors BLOB NOT NULL, checksum INTEGER NOT NULL
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
_CACHE_KILOBYTES: Final = 4_096


def open_writer(directory: Path) -> sqlite3.Connection:
    """Opens the connection that writes. Creates the file if needed."""
    path = directory / NAME
    connection = _connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        connection.close()
        for part in parts(directory):
            part.unlink(missing_ok=True)
        connection = _connect(path)
        create_tables(connection)
    return connection


def create_tables(connection: sqlite3.Connection) -> None:
    """Creates the tables of an empty database."""
    connection.executescript(f"BEGIN; {_TABLES} COMMIT;")


def parts(directory: Path) -> tuple[Path, ...]:
    """Returns the paths of the file, its log, and the index of the log."""
    return tuple(directory / name for name in (NAME, f"{NAME}-wal", f"{NAME}-shm"))


def open_reader(directory: Path) -> sqlite3.Connection:
    """Opens a connection that only reads. The file must exist."""
    connection = _connect(directory / NAME, "rw")
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect(path: Path, mode: str = "rwc") -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, isolation_level=None, check_same_thread=False, cached_statements=256, uri=True)
    try:
        for pragma in (
            f"page_size = {PAGE_BYTES}",  # for a new file
            "journal_mode = WAL",
            # A crash of the process loses nothing; a power loss loses what no flush has written to disk.
            "synchronous = NORMAL",
            "secure_delete = ON",
            f"cache_size = -{_CACHE_KILOBYTES}",
            f"journal_size_limit = {LOG_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


T = TypeVar("T")
SEGMENTS: Final = "segments"
"""The table of the segments; the number of a segment is its row id."""
_IDS_PER_STATEMENT: Final = 500
_COUNTED_SEGMENTS: Final = 1_000
"""Segments are counted up to this number to find the rarest of several labels."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    number: int
    tenant: str
    segment: Segment


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
    return list(dict.fromkeys(listed(conn, collection, ids).values()))


def listed(conn: sqlite3.Connection, collection: int, ids: Iterable[bytes]) -> dict[bytes, int]:
    """Returns those of the ids that are points, with their segments."""
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


def read(conn: sqlite3.Connection, number: int, dimension: int) -> StoredSegment:
    row = conn.execute(
        "SELECT tenant, labels, headers, vectors, checksum FROM segments WHERE segment = ?", (number,)
    ).fetchone()
    if row is None:
        raise IndexDamaged(f"segment {number} is missing")
    tenant, labels, headers, vectors, checksum = row
    require_intact(number, labels, headers, vectors, checksum)
    return StoredSegment(number, tenant, Segment.from_row(labels, headers, vectors, dimension))


def require_intact(number: int, labels: str, headers: bytes, vectors: bytes, checksum: int) -> None:
    """Raises IndexDamaged if the columns of a segment differ from their checksum."""
    if checksum != _checksum(labels, headers, vectors):
        raise IndexDamaged(f"segment {number} differs from its checksum")


def read_batch(
    conn: sqlite3.Connection,
    numbers: Sequence[int],
    dimension: int,
    take: Callable[[Codes], object] | None = None,
    at_once: int = 1,
) -> SegmentBatch:
    """Reads segments in any order. `take` receives the vectors of `at_once` of them together, which are not kept."""
    marks = ", ".join("?" * len(numbers))
    cursor = conn.execute(
        f"SELECT labels, headers, {'vectors' if take else 'NULL'} FROM segments WHERE segment IN ({marks})",  # noqa: S608
        numbers,
    )
    rows: list[tuple[str, bytes]] = []
    try:
        while some := cursor.fetchmany(at_once if take else len(numbers)):
            if take is not None:
                take(codes_from_row(b"".join(vectors for _, _, vectors in some), dimension))
            rows.extend((labels, headers) for labels, headers, _ in some)
        batch = SegmentBatch.from_rows(rows)
    except ValueError as error:
        raise IndexDamaged(f"a segment cannot be read: {error}") from error
    if missing := len(set(numbers)) - len(batch.counts):
        raise IndexDamaged(f"{missing} segments are missing")
    return batch


def point_ids(conn: sqlite3.Connection, collection: int, ids: Iterable[bytes]) -> list[bytes]:
    """Returns those of the ids that are points."""
    return list(listed(conn, collection, ids))


def next_point_ids(conn: sqlite3.Connection, collection: int, after: bytes, limit: int) -> list[bytes]:
    """Returns ids of points in order, after the id `after`."""
    rows = conn.execute(
        "SELECT id FROM points WHERE collection = ? AND id > ? ORDER BY id LIMIT ?", (collection, after, limit)
    )
    return [id_ for (id_,) in rows]


def count_points(conn: sqlite3.Connection, collection: int) -> int:
    """Returns the number of points."""
    return int(conn.execute("SELECT count(*) FROM points WHERE collection = ?", (collection,)).fetchone()[0])


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
    for id_, number in listed(conn, collection, ids).items():
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
    row = segment.to_row()
    values = (segment.oldest, segment.newest, *row, _checksum(*row))
    if old is None:
        number = conn.execute(
            "INSERT INTO segments (collection, tenant, oldest, newest, labels, headers, vectors, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (collection, tenant, *values),
        ).lastrowid
    else:
        conn.execute(
            "UPDATE segments SET oldest = ?, newest = ?, labels = ?, headers = ?, vectors = ?, checksum = ?"
            " WHERE segment = ?",
            (*values, number),
        )
    assert number is not None  # noqa: S101 - an insert has a row
    if labels_changed:
        conn.executemany(
            "INSERT INTO segment_labels (collection, label, newest, segment, oldest) VALUES (?, ?, ?, ?, ?)",
            [(collection, label, segment.newest, number, segment.oldest) for label in segment.labels],
        )
    return number


def _checksum(labels: str, headers: bytes, vectors: bytes) -> int:
    return zlib.crc32(vectors, zlib.crc32(headers, zlib.crc32(labels.encode())))


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
