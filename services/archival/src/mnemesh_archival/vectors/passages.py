"""Passages as points of the vector index; the only module that knows their payload."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Container, Coroutine, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from mnemesh_kit.failpoints import async_failpoint
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import IndexUnavailable
from mnemesh_retrieval.filters import Filter, HasId, HasWords, Match, MatchAll, MatchAny, TimeRange, all_of
from mnemesh_retrieval.index import (
    Candidates,
    Collection,
    ListQuery,
    Point,
    Position,
    SearchMode,
    SearchQuery,
    VectorIndex,
    WriteMode,
    instant,
)

from mnemesh_archival.errors import VectorIndexUnavailable
from mnemesh_archival.model.passages import Passage, PassageChange, PassageSource
from mnemesh_archival.store.base.passages import PassageScope
from mnemesh_archival.vectors.embedders import Embedders

P = ParamSpec("P")
T = TypeVar("T")
KEYWORD_FIELDS = ("organization_id", "archive_id", "tags", "agent_id", "file_id", "folder_id", "source")


def _with_service_errors(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Raises VectorIndexUnavailable in place of the index's own error."""

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except IndexUnavailable as error:
            raise VectorIndexUnavailable(f"The vector index is unavailable: {error}.") from error

    return call


class VectorPassageStore:
    """See PassageStore. Each embedder's collection is opened when first used."""

    def __init__(self, index: VectorIndex, embedders: Embedders) -> None:
        self._index = index
        self._embedders = embedders
        self._names: dict[str, str] = {}
        self._opening = asyncio.Lock()

    @_with_service_errors
    async def insert(
        self,
        embedder: str,
        organization_id: str,
        pairs: Sequence[tuple[UUID, Passage]],
        vectors: Sequence[Vector | None],
        *,
        replace: bool = False,
    ) -> None:
        """See PassageStore.insert."""
        points = [
            Point(point_id, vector, passage.text, _payload(organization_id, passage))
            for (point_id, passage), vector in zip(pairs, vectors, strict=True)
        ]
        mode = WriteMode.UPSERT if replace else WriteMode.INSERT_ABSENT
        collection = await self._collection(embedder)
        await async_failpoint("index.before_write", collection)
        await self._index.write(collection, points, mode)
        await async_failpoint("index.after_write", collection)

    @_with_service_errors
    async def update(self, embedder: str, point_id: UUID, change: PassageChange, vector: Vector | None) -> None:
        """See PassageStore.update."""
        collection = await self._collection(embedder)
        fields: dict[str, Any] = {"updated_at": instant(change.updated_at)}
        values = {"text": change.text, "tags": list(change.tags), "metadata": change.metadata}
        fields.update((name, values[name]) for name in change.fields)
        if "text" not in change.fields:
            await self._index.set_payload(collection, [point_id], fields)
            return
        for stored in await self._index.get(collection, [point_id]):
            changed = Point(point_id, vector, change.text, {**stored.payload, **fields})
            await self._index.write(collection, [changed], WriteMode.UPDATE_PRESENT)

    @_with_service_errors
    async def delete(self, embedder: str, point_ids: Sequence[UUID]) -> None:
        """See PassageStore.delete."""
        collection = await self._collection(embedder)
        await async_failpoint("index.before_delete", collection)
        await self._index.delete(collection, point_ids)
        await async_failpoint("index.after_delete", collection)

    @_with_service_errors
    async def drop_archive(self, embedder: str, organization_id: str, archive_id: str) -> None:
        """See PassageStore.drop_archive."""
        await self._index.delete_where(await self._collection(embedder), _archive_filter(organization_id, archive_id))

    @_with_service_errors
    async def point_ids(
        self, embedder: str, organization_id: str, archive_id: str, *, after: UUID | None, limit: int
    ) -> Sequence[UUID]:
        """See PassageStore.point_ids."""
        collection = await self._collection(embedder)
        return await self._index.scan(
            collection, _archive_filter(organization_id, archive_id), after=after, limit=limit
        )

    @_with_service_errors
    async def get(self, embedder: str, point_ids: Sequence[UUID], *, with_embedding: bool) -> dict[UUID, Passage]:
        """See PassageStore.get."""
        collection = await self._collection(embedder)
        stored = await self._index.get(collection, point_ids, with_vectors=with_embedding)
        return {point.id: _passage(point.payload, point.vector) for point in stored}

    @_with_service_errors
    async def candidates(
        self, scope: PassageScope, *, mode: SearchMode, text: str, vector: Vector | None, limit: int
    ) -> Candidates:
        """See PassageStore.candidates."""
        query = SearchQuery(mode, text=text, vector=vector, filter=_scope_filter(scope), candidates=limit)
        return await self._index.candidates(await self._collection(scope.embedder), query)

    @_with_service_errors
    async def matching(self, scope: PassageScope, point_ids: Sequence[UUID]) -> set[UUID]:
        """See PassageStore.matching."""
        condition = all_of(_scope_filter(scope), HasId(tuple(point_ids)))
        collection = await self._collection(scope.embedder)
        return set(await self._index.scan(collection, condition, limit=len(point_ids)))

    @_with_service_errors
    async def list(
        self,
        scope: PassageScope,
        *,
        words: str | None,
        ascending: bool,
        after: Position | None,
        before: Position | None,
        limit: int,
    ) -> list[tuple[Position, Passage]]:
        """See PassageStore.list."""
        condition = all_of(_scope_filter(scope), HasWords("text", words) if words else None)
        query = ListQuery(
            "created_at", descending=not ascending, filter=condition, after=after, before=before, limit=limit
        )
        points = await self._index.list_points(await self._collection(scope.embedder), query)
        listed = [(point.id, _passage(point.payload)) for point in points]
        return [(Position(passage.created_at, point_id), passage) for point_id, passage in listed]

    async def _collection(self, embedder: str) -> str:
        name = self._names.get(embedder)
        if name is None:
            async with self._opening:
                dimension = self._embedders.get(embedder).dimension
                name = _collection_name(embedder, await self._index.collections())
                collection = Collection(
                    name,
                    dimension,
                    keyword_fields=KEYWORD_FIELDS,
                    datetime_fields=("created_at",),
                    text_fields=("text",),
                    tenant_field="archive_id",
                )
                await self._index.ensure_collection(collection)
                self._names[embedder] = name
        return name


def _collection_name(embedder: str, existing: Container[str]) -> str:
    """Returns the name of an embedder's collection.

    The built-in embedders were named `engram/…` before the product was renamed. Collections that were created then
    hold the texts of passages and keep their name.
    """
    provider, _, model = embedder.partition("/")
    earlier = f"passages:engram/{model}"
    return earlier if provider == "mnemesh" and earlier in existing else f"passages:{embedder}"


def _archive_filter(organization_id: str, archive_id: str) -> Filter:
    return all_of(Match("organization_id", organization_id), Match("archive_id", archive_id))


def _scope_filter(scope: PassageScope) -> Filter:
    filter_ = scope.filter
    tags = MatchAll("tags", filter_.tags) if filter_.every_tag else MatchAny("tags", filter_.tags)
    return all_of(
        Match("organization_id", scope.organization_id),
        MatchAny("archive_id", scope.archive_ids) if scope.archive_ids is not None else None,
        tags if filter_.tags else None,
        Match("file_id", filter_.file_id) if filter_.file_id is not None else None,
        Match("folder_id", filter_.folder_id) if filter_.folder_id is not None else None,
        MatchAny("source", tuple(source.name for source in filter_.sources)) if filter_.sources else None,
        TimeRange("created_at", filter_.since, filter_.until) if filter_.since or filter_.until else None,
    )


def _payload(organization_id: str, passage: Passage) -> dict[str, Any]:
    return {
        "organization_id": organization_id,
        "archive_id": passage.archive_id,
        "passage_id": passage.id,
        "text": passage.text,
        "tags": list(passage.tags),
        "metadata": passage.metadata,
        "source": passage.source.name,
        "agent_id": passage.agent_id,
        "file_id": passage.file_id,
        "folder_id": passage.folder_id,
        "file_name": passage.file_name,
        "chunk_index": passage.chunk_index,
        "created_at": instant(passage.created_at),
        "updated_at": instant(passage.updated_at),
    }


def _passage(payload: dict[str, Any], vector: Vector | None = None) -> Passage:
    return Passage(
        id=payload["passage_id"],
        archive_id=payload["archive_id"],
        text=payload["text"],
        tags=tuple(payload["tags"]),
        metadata=payload.get("metadata"),  # an engine drops a value that was set to null
        source=PassageSource[payload["source"]],
        agent_id=payload["agent_id"],
        file_id=payload["file_id"],
        folder_id=payload["folder_id"],
        file_name=payload["file_name"],
        chunk_index=payload["chunk_index"],
        created_at=datetime.fromisoformat(payload["created_at"]),
        updated_at=datetime.fromisoformat(payload["updated_at"]),
        embedding=tuple(vector.tolist()) if vector is not None else (),
    )
