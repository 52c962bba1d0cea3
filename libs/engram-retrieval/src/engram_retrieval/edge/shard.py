"""One collection in one shard of the engine. Synchronous: EdgeIndex calls it from its one worker thread."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import qdrant_edge as qe

from engram_retrieval.edge.filters import engine_filter
from engram_retrieval.edge.residence import unmap_untouched
from engram_retrieval.edge.words import Words
from engram_retrieval.errors import CollectionMismatch, PointInvalid
from engram_retrieval.filters import Filter
from engram_retrieval.fusion import fuse
from engram_retrieval.index import Collection, Hit, Payload, Point, SearchMode, SearchQuery, StoredPoint, WriteMode

DENSE = "dense"
TEXT = "text"
MODES = {
    WriteMode.UPSERT: qe.UpdateMode.Upsert,
    WriteMode.INSERT_ABSENT: qe.UpdateMode.InsertOnly,
    WriteMode.UPDATE_PRESENT: qe.UpdateMode.UpdateOnly,
}
_Scored = list[tuple[UUID, float]]


class Shard:
    """Owns the engine's handle. `dirty` says whether writes wait for a flush."""

    def __init__(self, engine: qe.EdgeShard, dimension: int, words: Words) -> None:
        self.engine = engine
        self.dirty = False
        self._dimension = dimension
        self._words = words

    @classmethod
    def open(cls, path: Path, collection: Collection, words: Words) -> Shard:
        """Load the shard at `path`, or make it there: whole or not at all, whenever the process dies."""
        if not path.exists():
            building = path.with_name(path.name + ".building")
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
            made = qe.EdgeShard.create(str(building), _config(collection.dimension))
            _add_missing_indexes(made, collection)
            made.flush()
            made.close()
            building.rename(path)
        _require_dimension(collection, stored_dimension(path))
        engine = qe.EdgeShard.load(str(path), _config(collection.dimension))
        _add_missing_indexes(engine, collection)
        unmap_untouched(path)
        return cls(engine, collection.dimension, words)

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
        take = query.limit
        if query.mode is SearchMode.HYBRID:
            take = query.candidates or max(50, 4 * query.limit)
        dense = self._dense(query, take) if query.mode is not SearchMode.TEXT else []
        text = self._text(query, take) if query.mode is not SearchMode.DENSE else []
        if query.mode is SearchMode.HYBRID:
            lists = ((query.dense_weight, [id_ for id_, _ in dense]), (query.text_weight, [id_ for id_, _ in text]))
            best = fuse(lists)[: query.limit]
        else:
            best = dense or text
        return self._hits(best, dense, text)

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

    def ordered(self, condition: Filter, field: str, descending: bool, limit: int) -> list[tuple[int, UUID]]:
        """Microseconds since 1970 and ids in the order of a datetime field; ties come in no order."""
        order = qe.OrderBy(field, qe.Direction.Desc if descending else qe.Direction.Asc)
        request = qe.ScrollRequest(
            limit=limit, filter=engine_filter(condition), with_payload=False, with_vector=False, order_by=order
        )
        return [(int(record.order_value or 0), _uuid(record.id)) for record in self.engine.scroll(request)[0]]

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
        if point.vector is not None:
            if point.vector.shape != (self._dimension,) or not bool(np.isfinite(point.vector).all()):
                raise PointInvalid(f"point {point.id}: not a vector of {self._dimension} finite numbers")
            if point.vector.any():
                vectors[DENSE] = point.vector.tolist()
        words = self._words.document(point.text)
        if words.indices:
            vectors[TEXT] = words
        return qe.Point(point.id, vectors, dict(point.payload))

    def _dense(self, query: SearchQuery, take: int) -> _Scored:
        if query.vector is None or not query.vector.any():
            return []
        if query.vector.shape != (self._dimension,):
            raise PointInvalid(f"the query's vector is not of {self._dimension} numbers")
        return self._nearest(qe.Query.Nearest(query.vector.tolist(), DENSE), query.filter, take)

    def _text(self, query: SearchQuery, take: int) -> _Scored:
        words = self._words.query(query.text)
        if words is None:
            return []
        found = self._nearest(qe.Query.Nearest(words, TEXT), query.filter, take)
        return [(id_, score) for id_, score in found if score > 0]

    def _nearest(self, nearest: qe.Query, condition: Filter, take: int) -> _Scored:
        request = qe.QueryRequest(
            limit=take, query=nearest, filter=engine_filter(condition), with_payload=False, with_vector=False
        )
        found = [(_uuid(point.id), point.score) for point in self.engine.query(request)]
        return sorted(found, key=lambda item: (-item[1], item[0]))

    def _hits(self, best: _Scored, dense: _Scored, text: _Scored) -> list[Hit]:
        payloads = {point.id: point.payload for point in self.get([id_ for id_, _ in best], with_vectors=False)}
        dense_places = {id_: (rank, score) for rank, (id_, score) in enumerate(dense, start=1)}
        text_places = {id_: (rank, score) for rank, (id_, score) in enumerate(text, start=1)}
        return [
            Hit(
                id=id_,
                score=score,
                payload=payloads[id_],
                dense_rank=dense_places[id_][0] if id_ in dense_places else None,
                dense_score=dense_places[id_][1] if id_ in dense_places else None,
                text_rank=text_places[id_][0] if id_ in text_places else None,
                text_score=text_places[id_][1] if id_ in text_places else None,
            )
            for id_, score in best
        ]

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


def _config(dimension: int) -> qe.EdgeConfig:
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


def _uuid(id_: int | UUID | str) -> UUID:
    """Points are written with UUIDs only, so no other kind comes back."""
    if isinstance(id_, UUID):
        return id_
    raise TypeError(f"point id {id_!r} is no UUID")
