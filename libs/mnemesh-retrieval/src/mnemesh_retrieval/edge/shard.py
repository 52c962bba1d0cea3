"""One collection in one shard of the engine. Synchronous: EdgeIndex calls it from its one worker thread."""

import shutil
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import qdrant_edge as qe

from mnemesh_retrieval.edge.directory import CREATING
from mnemesh_retrieval.edge.engine import (
    DENSE,
    TEXT,
    add_missing_indexes,
    engine_config,
    flush_path,
    release_pages,
    require_dimension,
    stored_dimension,
    surviving,
)
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
from mnemesh_retrieval.errors import IndexDamaged
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
from mnemesh_retrieval.words.sparse import document_vector, query_numbers

if TYPE_CHECKING:
    from qdrant_edge import ConditionType


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
