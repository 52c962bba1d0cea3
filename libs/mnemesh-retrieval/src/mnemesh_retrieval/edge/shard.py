"""One collection in one shard of the engine. Synchronous: EdgeIndex calls it from its one worker thread."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import qdrant_edge as qe

from mnemesh_retrieval.edge.bm25 import Bm25Encoder
from mnemesh_retrieval.edge.filters import engine_filter
from mnemesh_retrieval.edge.page_cache import unmap_untouched, write_back
from mnemesh_retrieval.edge.rewrite import BUILDING
from mnemesh_retrieval.errors import CollectionMismatch
from mnemesh_retrieval.filters import Filter
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
)
from mnemesh_retrieval.listing import Every, First, listed_ids
from mnemesh_retrieval.ranking import (
    Scored,
    best,
    hits,
    in_match_order,
    in_order,
    matched,
    offered,
    query_vector,
    reach,
    stored_vector,
)

DENSE = "dense"
TEXT = "text"
MODES = {
    WriteMode.UPSERT: qe.UpdateMode.Upsert,
    WriteMode.INSERT_ABSENT: qe.UpdateMode.InsertOnly,
    WriteMode.UPDATE_PRESENT: qe.UpdateMode.UpdateOnly,
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Shard:
    """Owns the engine's handle. `dirty` says whether writes wait for a flush."""

    def __init__(self, engine: qe.EdgeShard, path: Path, dimension: int, words: Bm25Encoder) -> None:
        self.engine = engine
        self.path = path
        self.dirty = False
        self._dimension = dimension
        self._words = words

    @classmethod
    def open(cls, path: Path, collection: Collection, words: Bm25Encoder) -> Shard:
        """Load the shard at `path`, or make it there: whole or not at all, whenever the process dies."""
        if not path.exists():
            building = path.with_name(path.name + BUILDING)
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            made = qe.EdgeShard.create(str(building), engine_config(collection.dimension))
            _add_missing_indexes(made, collection)
            made.flush()
            made.close()
            building.rename(path)
        _require_dimension(collection, stored_dimension(path))
        engine = qe.EdgeShard.load(str(path), engine_config(collection.dimension))
        _add_missing_indexes(engine, collection)
        unmap_untouched(path)
        return cls(engine, path, collection.dimension, words)

    def adopt(self, collection: Collection) -> None:
        """Check the open shard against a collection asked for, and add payload indexes it lacks."""
        _require_dimension(collection, self._dimension)
        _add_missing_indexes(self.engine, collection)

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
        within = engine_filter(query.filter)
        dense = self._dense(query, within)
        text = self._text(query, within) if query.mode is not SearchMode.DENSE else []
        chosen = best(query, dense, text)
        if not query.with_payload:
            return hits(chosen, dense, text, {id_: {} for id_, _ in chosen})
        payloads = {point.id: point.payload for point in self.get([id_ for id_, _ in chosen], with_vectors=False)}
        return hits(chosen, dense, text, payloads)

    def candidates(self, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        offer = offered(query)
        within = engine_filter(query.filter)
        words = self._words.query(query.text) if query.mode is not SearchMode.DENSE else None
        if words is None:
            return Candidates(self._dense(offer, within))
        found = self.engine.query(
            qe.QueryRequest(
                limit=offer.limit,
                query=qe.Query.Nearest(words, TEXT),
                filter=within,
                with_payload=False,
                with_vector=[TEXT],
            )
        )
        forms = self._words.forms(query.text)
        texts = [
            matched(_uuid(point.id), point.score, words.indices, forms, held.indices, held.values)
            for point in found
            if isinstance(point.vector, dict) and isinstance(held := point.vector.get(TEXT), qe.SparseVector)
        ]
        return Candidates(self._dense(offer, within), in_match_order(texts))

    def list_points(self, query: ListQuery) -> list[StoredPoint]:
        """See VectorIndex.list_points."""
        asking = listed_ids(query)
        answer: list[Position] | None = None
        while True:
            try:
                asked = next(asking) if answer is None else asking.send(answer)
            except StopIteration as done:
                return self.get(done.value, with_vectors=False)
            answer = self._places(asked, query)

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
        """Bring acknowledged writes to the disk."""
        self.dirty = False
        write_back(self.path)
        self.engine.flush()

    def close(self) -> None:
        """Flush and let go of the directory."""
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
        words = self._words.document(point.text)
        if words.indices:
            vectors[TEXT] = words
        return qe.Point(point.id, vectors, dict(point.payload))

    def _dense(self, query: SearchQuery, within: qe.Filter) -> Scored:
        vector = query_vector(query, self._dimension)
        return self._nearest(qe.Query.Nearest(vector, DENSE), query, within) if vector is not None else []

    def _text(self, query: SearchQuery, within: qe.Filter) -> Scored:
        words = self._words.query(query.text)
        found = self._nearest(qe.Query.Nearest(words, TEXT), query, within) if words is not None else []
        return [(id_, score) for id_, score in found if score > 0]

    def _nearest(self, nearest: qe.Query, query: SearchQuery, within: qe.Filter) -> Scored:
        request = qe.QueryRequest(
            limit=reach(query), query=nearest, filter=within, with_payload=False, with_vector=False
        )
        return in_order([(_uuid(point.id), point.score) for point in self.engine.query(request)])

    def _places(self, asked: Every | First, query: ListQuery) -> list[Position]:
        if isinstance(asked, Every):
            return [Position(EPOCH, id_) for id_ in self.every(asked.condition)]
        request = qe.ScrollRequest(
            limit=asked.limit,
            filter=engine_filter(asked.condition),
            with_payload=False,
            with_vector=False,
            order_by=qe.OrderBy(query.order_by, qe.Direction.Desc if query.descending else qe.Direction.Asc),
        )
        return [_place(record) for record in self.engine.scroll(request)[0]]

    def every(self, condition: Filter, page: int = 10_000) -> list[UUID]:
        """The ids of all matching points, in the order of their ids."""
        ids: list[UUID] = []
        while True:
            found = self.scan(condition, ids[-1] if ids else None, page)
            ids.extend(found)
            if len(found) < page:
                return ids


def stored_dimension(path: Path) -> int:
    """The vector length that the shard at `path` was made with."""
    config = json.loads((path / "edge_config.json").read_text())
    return int(config["vectors"][DENSE]["size"])


def _require_dimension(collection: Collection, stored: int) -> None:
    if stored != collection.dimension:
        raise CollectionMismatch(
            f"collection {collection.name!r} holds vectors of {stored} numbers, not of {collection.dimension}"
        )


def engine_config(dimension: int) -> qe.EdgeConfig:
    """How every shard is made and loaded."""
    return qe.EdgeConfig(
        vectors={DENSE: qe.EdgeVectorParams(size=dimension, distance=qe.Distance.Cosine)},
        sparse_vectors={TEXT: qe.EdgeSparseVectorParams(modifier=qe.Modifier.Idf)},
        max_search_threads=1,
        wal_enabled=True,
    )


def _add_missing_indexes(engine: qe.EdgeShard, collection: Collection) -> None:
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


def _stored(record: qe.Record) -> StoredPoint:
    vector = record.vector.get(DENSE) if isinstance(record.vector, dict) else None
    return StoredPoint(
        id=_uuid(record.id),
        payload=record.payload or {},
        vector=np.asarray(vector, dtype=np.float32) if vector is not None else None,
    )


def _place(record: qe.Record) -> Position:
    """Datetimes are ordered by their microseconds."""
    return Position(EPOCH + timedelta(microseconds=int(record.order_value or 0)), _uuid(record.id))


def _uuid(id_: int | UUID | str) -> UUID:
    """Points are written with UUIDs only, so no other kind comes back."""
    if isinstance(id_, UUID):
        return id_
    raise TypeError(f"point id {id_!r} is no UUID")
