"""The file of a flat index, and the segments of vectors in its rows."""

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Collection as AbstractCollection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt
import structlog
from mnemesh_kit.sql.sqlite import LOG_BYTES

from mnemesh_retrieval.engine_queries import translate_filter
from mnemesh_retrieval.errors import IndexDamaged, PointInvalid, VectorIndexError
from mnemesh_retrieval.filters import And, Filter, HasId, Match, MatchAll, MatchAny, Scalar, TimeRange
from mnemesh_retrieval.index import Collection

CAPACITY: Final = 108
"""The largest number of points in a segment: so many vectors of 256 numbers, their headers and some labels are one page
of the file. Adding to a segment rewrites it; reading costs about as much per segment as per 64 points."""
MAX_LABELS: Final = 64
"""The largest number of different labels in a segment: each point has one bit for each label."""
HEADER: Final = np.dtype([("id", "S16"), ("time", "<i8"), ("inverse", "<f4"), ("bits", "<u8")])
"""The stored fields of a point other than its vector. `inverse` is one divided by the length of the stored vector."""
NO_TIME: Final = np.iinfo(np.int64).min
"""The time of a point without one."""

Headers = npt.NDArray[Any]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Entry:
    """A point to store."""

    id: bytes
    time: int
    """Microseconds since 1970."""
    labels: tuple[str, ...]
    vector: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Segment:
    """Points of one tenant; `headers` and `codes` have a row for each."""

    labels: tuple[str, ...]
    headers: Headers
    codes: Codes

    @classmethod
    def empty(cls, dimension: int) -> "Segment":
        """Returns a segment without points."""
        return cls((), np.empty(0, HEADER), np.empty((0, dimension), np.int8))

    @classmethod
    def from_row(cls, labels: str, headers: bytes, vectors: bytes, dimension: int) -> "Segment":
        return cls(labels_from_row(labels), np.frombuffer(headers, HEADER), codes_from_row(vectors, dimension))

    def to_row(self) -> tuple[str, bytes, bytes]:
        """Returns the columns of its row: labels, headers and vectors."""
        return json.dumps(self.labels), self.headers.tobytes(), self.codes.tobytes()

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def oldest(self) -> int:
        """The earliest time of its points."""
        return int(self.headers["time"].min())

    @property
    def newest(self) -> int:
        """The latest time of its points."""
        return int(self.headers["time"].max())

    def ids(self) -> list[bytes]:
        """Returns the ids of its points."""
        return ids_of(self.headers)

    def without(self, ids: Sequence[bytes]) -> "Segment":
        """Returns the segment without these points, and without the labels that only they have."""
        return self.filtered(~np.isin(self.headers["id"], np.array(ids, "S16")))

    def filtered(self, mask: npt.NDArray[np.bool_]) -> "Segment":
        """Returns the points of a mask, with their labels."""
        headers = self.headers[mask]
        empty = Segment((), np.empty(0, HEADER), self.codes[:0])
        labels = [self._labels_of(int(bits)) for bits in headers["bits"]]
        return empty._joined(headers, self.codes[mask], labels)

    def fitting(self, entries: Sequence[Entry]) -> int:
        """Returns how many of the entries, from the first, fit into the segment."""
        labels = set(self.labels)
        for index, entry in enumerate(entries[: CAPACITY - len(self)]):
            labels.update(entry.labels)
            if len(labels) > MAX_LABELS:
                return index
        return min(len(entries), CAPACITY - len(self))

    def extended(self, entries: Sequence[Entry]) -> "Segment":
        """Returns the segment with these points added; they must fit."""
        codes, inverses = quantized(np.stack([entry.vector for entry in entries]))
        headers = np.empty(len(entries), HEADER)
        headers["id"] = [entry.id for entry in entries]
        headers["time"] = [entry.time for entry in entries]
        headers["inverse"] = inverses
        return self._joined(headers, codes, [entry.labels for entry in entries])

    def _joined(self, headers: Headers, codes: Codes, labels: Sequence[Sequence[str]]) -> "Segment":
        """Adds points whose label bits are not set yet."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for of_point in labels:
            for label in of_point:
                numbers.setdefault(label, len(numbers))
        headers["bits"] = [sum(1 << numbers[label] for label in set(of_point)) for of_point in labels]
        return Segment(tuple(numbers), np.concatenate([self.headers, headers]), np.concatenate([self.codes, codes]))

    def _labels_of(self, bits: int) -> list[str]:
        return [label for number, label in enumerate(self.labels) if bits >> number & 1]


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Several segments without their vectors, to be searched at once; `headers` has a row for each point."""

    labels: tuple[str, ...]
    """The labels of each segment, as in its row."""
    counts: tuple[int, ...]
    """The number of points of each segment."""
    headers: Headers

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[str, bytes]]) -> "SegmentBatch":
        """Returns the segments of rows: labels and headers."""
        headers = np.frombuffer(b"".join(of_row for _, of_row in rows), HEADER)
        counts = tuple(len(of_row) // HEADER.itemsize for _, of_row in rows)
        return cls(tuple(labels for labels, _ in rows), counts, headers)

    def with_any_label(self, wanted: AbstractCollection[str]) -> npt.NDArray[np.bool_]:
        """Returns the mask of the points that have at least one of the labels."""
        bits: dict[str, int] = {}
        for labels in self.labels:
            if labels not in bits:  # most segments of a tenant have the same labels
                names = labels_from_row(labels)
                bits[labels] = sum(1 << number for number, name in enumerate(names) if name in wanted)
        by_segment = np.array([bits[labels] for labels in self.labels], np.uint64)
        mask: npt.NDArray[np.bool_] = (self.headers["bits"] & np.repeat(by_segment, self.counts)) != 0
        return mask

    def __len__(self) -> int:
        return len(self.headers)


def labels_from_row(labels: str) -> tuple[str, ...]:
    """Returns the labels of a segment, in the order of their bits."""
    return tuple(json.loads(labels))


def codes_from_row(vectors: bytes, dimension: int) -> Codes:
    """Returns the vectors of a segment, or of several in turn, with a row for each point."""
    return np.frombuffer(vectors, np.int8).reshape(-1, dimension)


def ids_of(headers: Headers) -> list[bytes]:
    """Returns the ids of points, sixteen bytes each."""
    return [id_.ljust(16, b"\0") for id_ in headers["id"].tolist()]  # numpy strips trailing zeros as padding


def quantized(vectors: npt.NDArray[np.float32]) -> tuple[Codes, npt.NDArray[np.float32]]:
    """Returns vectors as eight-bit integers, and one divided by the length of each.

    Each vector has its own scale, and none may be zero. The cosine with another vector is off by about 0.001.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    codes = np.rint(vectors * (127 / largest)).astype(np.int8)
    lengths = np.linalg.norm(codes.astype(np.float32), axis=1)
    return codes, (1 / lengths).astype(np.float32)


def require_few_labels(labels: Sequence[str], point_id: object) -> None:
    """Raises PointInvalid if a point has more labels than a segment can distinguish."""
    if len(labels) > MAX_LABELS:
        raise PointInvalid(f"point {point_id}: more than {MAX_LABELS} values of its keyword fields")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Mask = npt.NDArray[np.bool_]


def label_of(field: str, value: Scalar) -> str:
    """Returns the label of the points whose field has the value."""
    return f"{field}={value}"


def microseconds(value: datetime) -> int:
    """Returns the microseconds since 1970."""
    return (value - _EPOCH) // _MICROSECOND


def labels_of(payload: Any, collection: Collection) -> tuple[str, ...]:
    """Returns the labels of a point, one per value of its keyword and UUID fields; those of the tenant field first."""
    fields = (*collection.keyword_fields, *collection.uuid_fields)
    tenant = collection.tenant_field
    ordered = sorted(fields, key=lambda field: field != tenant)
    return tuple(dict.fromkeys(label_of(field, value) for field in ordered for value in _values(payload.get(field))))


def time_of(payload: Any, collection: Collection) -> int:
    """Returns the time of a point in microseconds since 1970; NO_TIME if it has none."""
    value = payload.get(collection.datetime_fields[0]) if collection.datetime_fields else None
    return NO_TIME if value is None else microseconds(datetime.fromisoformat(value))


def matching(condition: Filter, batch: SegmentBatch) -> Mask:
    """Returns the mask of the points that match."""
    return translate_filter(condition, _MaskBuilder(batch))


class _MaskBuilder:
    """See FilterBuilder. A condition is the mask of the points for which it holds."""

    def __init__(self, batch: SegmentBatch) -> None:
        self._batch = batch

    def equals(self, field: str, value: Scalar) -> Mask:
        return self._batch.with_any_label([label_of(field, value)])

    def among(self, field: str, values: Sequence[str]) -> Mask:
        return self._batch.with_any_label([label_of(field, value) for value in values])

    def words(self, field: str, text: str) -> Mask:  # noqa: ARG002  (there are none)
        raise VectorIndexError("this index has no words")

    substring = words

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> Mask:  # noqa: ARG002  (the only time)
        times = self._batch.headers["time"]
        inside: Mask = times != NO_TIME
        if gte is not None:
            inside &= times >= microseconds(gte)
        if lt is not None:
            inside &= times < microseconds(lt)
        return inside

    def ids(self, ids: Sequence[UUID]) -> Mask:
        return np.isin(self._batch.headers["id"], np.array([id_.bytes for id_ in ids], "S16"))

    def every(self, conditions: Sequence[Mask]) -> Mask:
        result = np.ones(len(self._batch), np.bool_)
        for mask in conditions:
            result &= mask
        return result

    def some(self, conditions: Sequence[Mask]) -> Mask:
        return ~self.every([~mask for mask in conditions])

    def none(self, condition: Mask) -> Mask:
        return ~condition


@dataclass(frozen=True, slots=True)
class SegmentFilter:
    """The properties that all matches share, by which segments are selected."""

    labels: tuple[tuple[str, ...], ...]
    """A match has at least one label of each group."""
    ids: tuple[bytes, ...] | None
    """A match is one of these; None for any id."""
    since: int
    before: int


def segment_filter(condition: Filter) -> SegmentFilter:
    """Returns the properties that follow from the conditions that must all hold."""
    labels: list[tuple[str, ...]] = []
    ids: tuple[bytes, ...] | None = None
    since, before = NO_TIME, np.iinfo(np.int64).max
    for each in _conjuncts(condition):
        match each:
            case Match(field, value):
                labels.append((label_of(field, value),))
            case MatchAny(field, values):
                labels.append(tuple(label_of(field, value) for value in values))
            case MatchAll(field, values):
                labels.extend((label_of(field, value),) for value in values)
            case HasId(wanted):
                ids = tuple(id_.bytes for id_ in wanted)
            case TimeRange(_, gte, lt):
                since = max(since, microseconds(gte)) if gte is not None else since
                before = min(before, microseconds(lt)) if lt is not None else before
            case _:
                pass
    return SegmentFilter(tuple(labels), ids, since, int(before))


def _conjuncts(condition: Filter) -> Iterator[Filter]:
    if isinstance(condition, And):
        for each in condition.conditions:
            yield from _conjuncts(each)
    else:
        yield condition


def _values(value: Any) -> Sequence[Scalar]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


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
