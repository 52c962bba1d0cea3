"""A shard of the engine: its process-wide settings, its directory, its lifecycle and its calls."""

import ctypes
import json
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote
from uuid import UUID

import numpy as np
import qdrant_edge as qe

from mnemesh_retrieval.engine_queries import (
    AllPoints,
    PointQuery,
    Scored,
    listed_ids,
    query_vector,
    require_one_list,
    sorted_matches,
    sorted_scores,
    stored_vector,
    translate_filter,
    word_match,
)
from mnemesh_retrieval.errors import CollectionMismatch, IndexDamaged, IndexFull, VectorIndexError
from mnemesh_retrieval.filters import Filter, Scalar
from mnemesh_retrieval.index import (
    Candidates,
    Collection,
    Hit,
    ListQuery,
    Payload,
    Point,
    Position,
    SearchMode,
    SearchQuery,
    StoredPoint,
    WriteMode,
    instant,
)
from mnemesh_retrieval.index_directory import DirectoryLock, discard, move_aside
from mnemesh_retrieval.words.sparse import document_vector, query_numbers

if TYPE_CHECKING:
    from qdrant_edge import ConditionType

DENSE = "dense"
TEXT = "text"


def engine_config(dimension: int) -> qe.EdgeConfig:
    """Returns the configuration with which every shard is created and loaded."""
    return qe.EdgeConfig(
        vectors={DENSE: qe.EdgeVectorParams(size=dimension, distance=qe.Distance.Cosine)},
        sparse_vectors={TEXT: qe.EdgeSparseVectorParams(modifier=qe.Modifier.Idf)},
        max_search_threads=1,
        wal_enabled=True,
    )


def stored_dimension(path: Path) -> int:
    """Returns the vector length of the shard at `path`."""
    config = json.loads((path / "edge_config.json").read_text())
    return int(config["vectors"][DENSE]["size"])


def require_dimension(collection: Collection, stored: int) -> None:
    """Raises CollectionMismatch if the stored dimension differs from that of the collection."""
    if stored != collection.dimension:
        raise CollectionMismatch(
            f"collection {collection.name!r} has vectors of {stored} numbers, not of {collection.dimension}"
        )


def add_missing_indexes(engine: qe.EdgeShard, collection: Collection) -> None:
    """Creates the payload indexes of the collection that the shard does not have."""
    present = engine.info().payload_schema
    for name in collection.keyword_fields:
        if name not in present:
            tenant = name == collection.tenant_field
            engine.update(qe.UpdateOperation.create_field_index(name, qe.KeywordIndexParams(is_tenant=tenant)))
    for name in collection.uuid_fields:
        if name not in present:
            tenant = name == collection.tenant_field
            engine.update(qe.UpdateOperation.create_field_index(name, qe.UuidIndexParams(is_tenant=tenant)))
    for name in collection.datetime_fields:
        if name not in present:
            engine.update(qe.UpdateOperation.create_field_index(name, qe.DatetimeIndexParams()))
    for name in collection.text_fields:
        if name not in present:
            folded = qe.TextIndexParams(tokenizer=qe.TokenizerType.Word, lowercase=True, ascii_folding=True)
            engine.update(qe.UpdateOperation.create_field_index(name, folded))


_FULL: Final = re.compile(r"os error (28|122)\b|No space left")
# Permissions, too many open files, too little memory, a read-only or failing disk.
_SURROUNDINGS: Final = re.compile(r"os error (1|5|12|13|23|24|30)\b")
_DAMAGE: Final = re.compile(
    r"out of bounds|[Ff]ailed to (decode|decompress|deserialize)|[Cc]orrupt|Requested pages|invalid utf-8"
)


def engine_error(error: BaseException, *, opening: bool) -> VectorIndexError:
    """Returns the library's error for a failure of the engine, which raises bare Exceptions and panics.

    Args:
        error: the engine's exception.
        opening: whether a stored collection was being opened; then every failure that the surroundings do not explain
            is damage.
    """
    text = (str(error).splitlines() or [type(error).__name__])[0]
    if _FULL.search(text):
        return IndexFull(f"the disk of the vector index is full: {text}")
    if _SURROUNDINGS.search(text):
        return VectorIndexError(f"the vector index failed: {text}")
    if opening or _DAMAGE.search(text):
        return IndexDamaged(f"the vector index is damaged: {text}")
    return VectorIndexError(f"the vector index failed: {text}")


def is_panic(error: BaseException) -> bool:
    """Returns whether the engine panicked. The exception's class is not importable, and derives from BaseException."""
    return type(error).__name__ == "PanicException"


@contextmanager
def surviving(marker: Path, attempts: int, action: str) -> Iterator[None]:
    """Notes in a file that the process is doing something that a damaged file may end it with.

    Raises:
        IndexDamaged: the process has ended `attempts` times in a row while doing it.
    """
    ended = int(marker.read_text() or 0) if marker.exists() else 0
    if ended >= attempts:
        marker.unlink()
        raise IndexDamaged(f"the process ended {ended} times while it {action} the vector index")
    with suppress(OSError):  # a full disk: the files are used without the note
        marker.write_text(str(ended + 1))
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)


MAX_MAPPED_BYTES: Final = 256 * 1024 * 1024
"""The resident size of all mapped files of the process above which the engine's pages are released."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \S+\s+(/.*)")


def release_pages(directory: Path) -> None:
    """Releases the resident pages of all files under `directory`. Works on Linux only; elsewhere it does nothing."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    inside = f"{directory.resolve()}/"
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        mapping = _MAPPING.fullmatch(line)
        if mapping is None or not mapping[4].startswith(inside) or not mapping[3].endswith("s"):
            continue  # private mappings may have changes that are not in the file
        start, end = int(mapping[1], 16), int(mapping[2], 16)
        libc.madvise(start, end - start, mmap.MADV_DONTNEED)


def mapped_bytes() -> int:
    """Returns the resident size of the files that this process maps, libraries included; 0 if it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def write_back(directory: Path) -> None:
    """Flushes the files and folders under `directory` to disk. Files that disappear meanwhile are passed over.

    The engine's own flush does the same but holds the interpreter lock; after this it has little to do. A shard has
    hundreds of files, so Linux flushes the file system in one call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        for path in (*directory.rglob("*"), directory):
            with suppress(FileNotFoundError):
                flush_path(path)
        return
    with suppress(FileNotFoundError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            if libc.syncfs(descriptor):
                raise OSError(ctypes.get_errno(), "the file system could not be flushed", str(directory))
        finally:
            os.close(descriptor)


def flush_path(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


BUILDING = ".building"
CREATING = ".creating"
DROPPED = ".dropped"
REWRITTEN = ".rewritten"
PAGE = 500


@dataclass(frozen=True, slots=True)
class RewriteReport:
    """The result of a rewrite. Sizes are the disk space of the files."""

    collection: str
    points: int
    bytes_before: int
    bytes_after: int


def recover(directory: Path, suffix: str) -> None:
    """Finishes or undoes what a crash interrupted, in a directory of shards with this suffix."""
    for creating in directory.glob(f"*{suffix}{CREATING}"):
        shutil.rmtree(creating.with_name(creating.name.removesuffix(CREATING)), ignore_errors=True)
        creating.unlink()
    for rewritten in directory.glob(f"*{suffix}{REWRITTEN}"):
        path = rewritten.with_name(rewritten.name.removesuffix(REWRITTEN))
        if path.exists():
            shutil.rmtree(rewritten)  # the swap did not start, and the old shard may have changed since
        else:
            rewritten.rename(path)
    for ending in (BUILDING, DROPPED):
        for leftover in directory.glob(f"*{suffix}{ending}"):
            shutil.rmtree(leftover)


def rewrite(path: Path, collection: str, config: qe.EdgeConfig) -> RewriteReport:
    """Replaces a shard that is not open by a copy of its live points."""
    building = path.with_name(path.name + BUILDING)
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    old, new = qe.EdgeShard.load(str(path), config), qe.EdgeShard.create(str(building), config)
    try:
        for name, index in old.info().payload_schema.items():
            new.update(qe.UpdateOperation.create_field_index(name, index.params or index.data_type))
        points = _copy(old, new)
        new.flush()
    finally:
        old.close()
        new.close()
    before = disk_bytes(path)
    rewritten = path.with_name(path.name + REWRITTEN)
    dropped = path.with_name(path.name + DROPPED)
    building.rename(rewritten)
    path.rename(dropped)
    rewritten.rename(path)
    shutil.rmtree(dropped)
    return RewriteReport(collection, points, before, disk_bytes(path))


def _copy(old: qe.EdgeShard, new: qe.EdgeShard) -> int:
    copied = 0
    offset = None
    while True:
        records, offset = old.scroll(qe.ScrollRequest(offset=offset, limit=PAGE, with_payload=True, with_vector=True))
        if records:
            points = [qe.Point(record.id, record.vector or {}, record.payload or {}) for record in records]
            new.update(qe.UpdateOperation.upsert_points(points))
            copied += len(points)
        if offset is None:
            return copied


def disk_bytes(path: Path) -> int:
    """Returns the disk space of the files under a directory; many are preallocated and sparse."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


_SHARD: Final = ".shard"


class ShardDirectory:
    """The files of shards that are not open. Its owner has the lock of the directory until `release`."""

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> "ShardDirectory":
        """Creates the directory if absent, locks it, and completes what a crash has interrupted. Raises IndexLocked."""
        path.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock.acquire(path)
        recover(path, _SHARD)
        return cls(path, lock)

    def path_of(self, collection: str) -> Path:
        return self.path / f"{quote(collection, safe='')}{_SHARD}"

    def collections(self) -> tuple[str, ...]:
        """Returns the collections that have a shard, in order."""
        return tuple(unquote(path.name.removesuffix(_SHARD)) for path in sorted(self.path.glob(f"*{_SHARD}")))

    def drop(self, collection: str) -> None:
        """Deletes a shard, if there is one. After a crash, all of it or nothing is left."""
        path = self.path_of(collection)
        if path.exists():
            dropped = path.with_name(path.name + DROPPED)
            shutil.rmtree(dropped, ignore_errors=True)
            path.rename(dropped)
            shutil.rmtree(dropped)

    def rewrite(self, collection: str) -> RewriteReport:
        """Rewrites a shard from its live points."""
        path = self.path_of(collection)
        return rewrite(path, collection, engine_config(stored_dimension(path)))

    def move_aside(self, collection: str) -> str | None:
        """Moves a damaged shard out of the way. Returns the folder that it is in now; None if there is no shard."""
        moved_to = move_aside(self.path, [self.path_of(collection)])
        return str(moved_to) if moved_to is not None else None

    def discard_damaged(self) -> None:
        """Deletes the damaged shards that were moved aside."""
        discard(self.path)

    def release(self) -> None:
        """Releases the lock."""
        self._lock.release()


def engine_filter(condition: Filter) -> qe.Filter:
    """Returns a filter of the engine that matches the same points."""
    return qe.Filter(must=[translate_filter(condition, _FilterBuilder())])


class _FilterBuilder:
    """See FilterBuilder."""

    def equals(self, field: str, value: Scalar) -> "ConditionType":
        return qe.FieldCondition(field, match=qe.MatchValue(value))

    def among(self, field: str, values: Sequence[str]) -> "ConditionType":
        return qe.FieldCondition(field, match=qe.MatchAny(list(values)))

    def words(self, field: str, text: str) -> "ConditionType":
        return qe.FieldCondition(field, match=qe.MatchText(text))

    def substring(self, field: str, text: str) -> "ConditionType":
        return qe.FieldCondition(field, match=qe.MatchSubstring(text))

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> "ConditionType":
        return qe.FieldCondition(field, range=qe.RangeDateTime(gte=_bound(gte), lt=_bound(lt)))

    def ids(self, ids: Sequence[UUID]) -> "ConditionType":
        return qe.HasIdCondition(set(ids))

    def every(self, conditions: "Sequence[ConditionType]") -> "ConditionType":
        return qe.Filter(must=list(conditions))

    def some(self, conditions: "Sequence[ConditionType]") -> "ConditionType":
        return qe.Filter(should=list(conditions))

    def none(self, condition: "ConditionType") -> "ConditionType":
        return qe.Filter(must_not=[condition])


def _bound(value: datetime | None) -> str | None:
    return instant(value) if value is not None else None


PARTS: Final = "_parts"
"""The payload field with the names of the vectors that a point was written with."""
NORM_TOLERANCE: Final = 0.001


def require_intact(record: qe.Record, tenant_field: str | None) -> None:
    """Raises IndexDamaged if a point has lost its payload or a vector, or if its vector has another length."""
    vectors = record.vector if isinstance(record.vector, dict) else {}
    parts = (record.payload or {}).get(PARTS)
    if parts is None and tenant_field not in (record.payload or {}) and tenant_field is not None:
        raise IndexDamaged(f"point {record.id} has lost its payload")
    if parts is not None and set(parts) - set(vectors):
        raise IndexDamaged(f"point {record.id} has lost a vector")
    dense = vectors.get(DENSE)
    if dense is not None and not abs(float(np.linalg.norm(np.asarray(dense, np.float32))) - 1) < NORM_TOLERANCE:
        raise IndexDamaged(f"the vector of point {record.id} has changed")


MODES = {
    WriteMode.UPSERT: qe.UpdateMode.Upsert,
    WriteMode.INSERT_ABSENT: qe.UpdateMode.InsertOnly,
    WriteMode.UPDATE_PRESENT: qe.UpdateMode.UpdateOnly,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOADING = ".loading"
LOADING_ATTEMPTS = 2
"""A shard is damaged if the process ends this many times in a row while it loads it."""


class Shard:
    """Owns a shard of the engine. `dirty` is True while writes wait for a flush."""

    def __init__(self, engine: qe.EdgeShard, path: Path, collection: Collection) -> None:
        self.engine = engine
        self.path = path
        self.dirty = False
        self._dimension = collection.dimension
        self._tenant_field = collection.tenant_field

    @classmethod
    def open(cls, path: Path, collection: Collection) -> "Shard":
        """Loads the shard at `path`, or creates it: a crash leaves a complete shard or none.

        Raises:
            IndexDamaged: the process ended repeatedly while it loaded the shard.
            CollectionMismatch: the shard has another dimension.
        """
        creating = path.with_name(path.name + CREATING)
        if creating.exists():  # it could not be created before, for example because the disk was full
            shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return cls(_created(path, creating, collection), path, collection)
        require_dimension(collection, stored_dimension(path))
        with surviving(path.with_name(path.name + LOADING), LOADING_ATTEMPTS, "loaded"):
            engine = qe.EdgeShard.load(str(path), engine_config(collection.dimension))
        add_missing_indexes(engine, collection)
        release_pages(path)
        return cls(engine, path, collection)

    def adopt(self, collection: Collection) -> None:
        """Checks the dimension of the open shard and adds missing payload indexes. Raises CollectionMismatch."""
        require_dimension(collection, self._dimension)
        add_missing_indexes(self.engine, collection)

    def write(self, points: Sequence[Point], mode: WriteMode) -> None:
        """See VectorIndex.write."""
        if not points:
            return
        whole = list({point.id: self._engine_point(point) for point in points}.values())
        self._update(qe.UpdateOperation.upsert_points(whole, update_mode=MODES[mode]))

    def set_payload(self, ids: Sequence[UUID], fields: Payload) -> None:
        """See VectorIndex.set_payload."""
        present: list[int | UUID | str] = [record.id for record in self.engine.retrieve(list(ids), False, False)]
        if present:
            self._update(qe.UpdateOperation.set_payload(present, dict(fields)))

    def get(self, ids: Sequence[UUID], with_vectors: bool) -> list[StoredPoint]:
        """See VectorIndex.get."""
        with_vector: bool | list[str] = [DENSE] if with_vectors else False
        found = {record.id: record for record in self.engine.retrieve(list(dict.fromkeys(ids)), True, with_vector)}
        return [_stored(found[id_]) for id_ in ids if id_ in found]

    def delete(self, ids: Sequence[UUID]) -> None:
        """See VectorIndex.delete."""
        if ids:
            self._update(qe.UpdateOperation.delete_points(list(ids)))

    def delete_where(self, condition: Filter) -> None:
        """See VectorIndex.delete_where."""
        self._update(qe.UpdateOperation.delete_points_by_filter(engine_filter(condition)))

    def search(self, query: SearchQuery) -> list[Hit]:
        """See VectorIndex.search."""
        require_one_list(query)
        find = self._dense if query.mode is SearchMode.VECTOR else self._text
        found = find(query, engine_filter(query.filter))
        if not query.with_payload:
            return [Hit(id_, score, {}) for id_, score in found]
        payloads = {point.id: point.payload for point in self.get([id_ for id_, _ in found], with_vectors=False)}
        return [Hit(id_, score, payloads[id_]) for id_, score in found if id_ in payloads]

    def candidates(self, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        within = engine_filter(query.filter)
        words = query_numbers(query.text) if query.mode is not SearchMode.VECTOR else {}
        if not words:
            return Candidates(self._dense(query, within))
        points = self.engine.query(
            qe.QueryRequest(
                limit=query.limit,
                query=qe.Query.Nearest(_sparse(words), TEXT),
                filter=within,
                with_payload=False,
                with_vector=[TEXT],
            )
        )
        texts = [
            word_match(_uuid(point.id), point.score, words, sparse.indices, sparse.values)
            for point in points
            if isinstance(point.vector, dict) and isinstance(sparse := point.vector.get(TEXT), qe.SparseVector)
        ]
        return Candidates(self._dense(query, within), sorted_matches(texts))

    def list_points(self, query: ListQuery) -> list[StoredPoint]:
        """See VectorIndex.list_points."""
        listing = listed_ids(query)
        positions: list[Position] | None = None
        while True:
            try:
                request = next(listing) if positions is None else listing.send(positions)
            except StopIteration as done:
                return self.get(done.value, with_vectors=False)
            positions = self._positions(request, query)

    def scan(self, condition: Filter, after: UUID | None, limit: int) -> list[UUID]:
        """See VectorIndex.scan."""
        request = qe.ScrollRequest(
            offset=after,
            limit=limit + (after is not None),
            filter=engine_filter(condition),
            with_payload=False,
            with_vector=False,
        )
        return [found for record in self.engine.scroll(request)[0] if (found := _uuid(record.id)) != after][:limit]

    def count(self, condition: Filter) -> int:
        """See VectorIndex.count."""
        return self.engine.count(qe.CountRequest(exact=True, filter=engine_filter(condition)))

    def facets(self, field: str, condition: Filter, limit: int) -> dict[str, int]:
        """See VectorIndex.facets."""
        request = qe.FacetRequest(field, limit=limit, exact=True, filter=engine_filter(condition))
        return {str(hit.value): hit.count for hit in self.engine.facet(request).hits}

    def flush(self) -> None:
        """Flushes completed writes by the engine, which holds the interpreter lock."""
        self.dirty = False
        self.engine.flush()

    def verify(self, after: UUID | None, limit: int) -> UUID | None:
        """Reads points after an id. Returns the last one, or None if there are no more. Raises IndexDamaged."""
        request = qe.ScrollRequest(offset=after, limit=limit + 1, with_payload=True, with_vector=True)
        records, _ = self.engine.scroll(request)
        for record in records:
            require_intact(record, self._tenant_field)
        return _uuid(records[-1].id) if len(records) > limit else None

    def close(self) -> None:
        """Flushes and closes the shard."""
        self.engine.flush()
        self.engine.close()

    def _update(self, operation: qe.UpdateOperation) -> None:
        self.dirty = True
        self.engine.update(operation)

    def _engine_point(self, point: Point) -> qe.Point:
        vectors: dict[str, Any] = {}
        vector = stored_vector(point, self._dimension)
        if vector is not None:
            vectors[DENSE] = vector
        words = document_vector(point.text)
        if words:
            vectors[TEXT] = qe.SparseVector(list(words), list(words.values()))
        return qe.Point(point.id, vectors, {**point.payload, PARTS: sorted(vectors)})

    def _dense(self, query: SearchQuery, within: qe.Filter) -> Scored:
        vector = query_vector(query, self._dimension)
        return self._nearest(qe.Query.Nearest(vector, DENSE), query, within) if vector is not None else []

    def _text(self, query: SearchQuery, within: qe.Filter) -> Scored:
        words = query_numbers(query.text)
        found = self._nearest(qe.Query.Nearest(_sparse(words), TEXT), query, within) if words else []
        return [(id_, score) for id_, score in found if score > 0]

    def _nearest(self, nearest: qe.Query, query: SearchQuery, within: qe.Filter) -> Scored:
        request = qe.QueryRequest(
            limit=query.limit, query=nearest, filter=within, with_payload=False, with_vector=False
        )
        return sorted_scores([(_uuid(point.id), point.score) for point in self.engine.query(request)])

    def _positions(self, request: PointQuery, query: ListQuery) -> list[Position]:
        if isinstance(request, AllPoints):
            return [Position(EPOCH, id_) for id_ in self.every(request.condition)]
        scroll = qe.ScrollRequest(
            limit=request.limit,
            filter=engine_filter(request.condition),
            with_payload=False,
            with_vector=False,
            order_by=qe.OrderBy(query.order_by, qe.Direction.Desc if query.descending else qe.Direction.Asc),
        )
        return [_position(record) for record in self.engine.scroll(scroll)[0]]

    def every(self, condition: Filter, page: int = 10_000) -> list[UUID]:
        """Returns the ids of all matching points, in order."""
        ids: list[UUID] = []
        while True:
            found = self.scan(condition, ids[-1] if ids else None, page)
            ids.extend(found)
            if len(found) < page:
                return ids


def _created(path: Path, creating: Path, collection: Collection) -> qe.EdgeShard:
    """Creates an empty shard, which is incomplete while the file `creating` exists.

    The engine stays open: loading the shard again would read all its preallocated files.
    """
    creating.touch()
    flush_path(path.parent)
    path.mkdir()
    engine = qe.EdgeShard.create(str(path), engine_config(collection.dimension))
    add_missing_indexes(engine, collection)
    engine.flush()
    creating.unlink()
    flush_path(path.parent)
    return engine


def _sparse(words: Iterable[int]) -> qe.SparseVector:
    numbers = list(words)
    return qe.SparseVector(numbers, [1.0] * len(numbers))


def _stored(record: qe.Record) -> StoredPoint:
    vector = record.vector.get(DENSE) if isinstance(record.vector, dict) else None
    return StoredPoint(
        id=_uuid(record.id),
        payload={name: value for name, value in (record.payload or {}).items() if name != PARTS},
        vector=np.asarray(vector, dtype=np.float32) if vector is not None else None,
    )


def _position(record: qe.Record) -> Position:
    """Returns the position of a record; the engine orders datetimes by their microseconds."""
    return Position(EPOCH + timedelta(microseconds=int(record.order_value or 0)), _uuid(record.id))


def _uuid(id_: int | UUID | str) -> UUID:
    """Returns the id as a UUID; points are written with UUIDs only."""
    if isinstance(id_, UUID):
        return id_
    raise TypeError(f"point id {id_!r} is not a UUID")
