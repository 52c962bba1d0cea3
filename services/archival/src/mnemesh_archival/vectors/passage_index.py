"""The vector index of passages, kept current by the indexer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import structlog
from mnemesh_kit.deadline import remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.errors import IndexDamaged, VectorIndexError
from mnemesh_retrieval.filters import HasId, all_of
from mnemesh_retrieval.index import Candidates, SearchMode, SearchQuery, VectorIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.records import Change, Claim

from mnemesh_archival.errors import EmbedderUnknown, VectorIndexUnavailable
from mnemesh_archival.store.base.index_records import IndexRecords
from mnemesh_archival.store.base.passage_index import APPLY_SECONDS
from mnemesh_archival.store.base.passages import PassageScope
from mnemesh_archival.vectors.embedders import MARGIN_SECONDS, CollectionEmbedder, Embedders
from mnemesh_archival.vectors.points import collection, scope_filter
from mnemesh_archival.vectors.source import PassageSource

OPEN_SECONDS: Final = 5.0
"""How long the start waits for changes that the last process had not flushed."""
_log: Final = structlog.get_logger("mnemesh.archival")


class VectorPassageIndex:
    """See PassageIndex. The collection of an embedder is registered with the indexer when it is first used."""

    def __init__(self, index: VectorIndex, indexer: Indexer, records: IndexRecords, embedders: Embedders) -> None:
        self._index = index
        self._indexer = indexer
        self._records = records
        self._embedders = embedders
        self._sources: dict[str, PassageSource] = {}
        self._registering = asyncio.Lock()

    async def open(self) -> None:
        """Registers and opens the collections of all archives and of all changes, and applies changes that wait."""
        dimensions = await self._records.embedders()
        for handle in dict.fromkeys([*dimensions, *await self._records.pending_collections(), self._embedders.default]):
            try:
                await self._source(handle, dimensions)
            except EmbedderUnknown as error:
                _log.warning("collection_not_opened", embedder=handle, error=str(error))
        await self._indexer.open()
        with suppress(TimeoutError, MnemeshError):
            async with asyncio.timeout(OPEN_SECONDS):
                await self._indexer.catch_up()

    def claim(self) -> Claim | None:
        """See PassageIndex.claim."""
        return self._indexer.claim()

    async def apply(self, changes: Sequence[Change], within: float | None = APPLY_SECONDS) -> bool:
        """See PassageIndex.apply."""
        left = remaining()
        if left is not None:
            within = max(0.0, min(APPLY_SECONDS if within is None else within, left - MARGIN_SECONDS))
        try:
            async with asyncio.timeout(within):
                for handle in {change.collection for change in changes}:
                    await self._source(handle)
                applied = await self._indexer.apply(changes)
        except (TimeoutError, EmbedderUnknown):
            applied = False
        if not applied:
            self._indexer.notify()
        return applied

    def notify(self) -> None:
        """See PassageIndex.notify."""
        self._indexer.notify()

    async def behind(self, embedder: str, limit: int) -> Sequence[UUID] | None:
        """See PassageIndex.behind."""
        try:
            source = await self._source(embedder)
        except EmbedderUnknown:
            return None
        if not self._indexer.is_complete(embedder):
            return None
        if not self._indexer.is_behind(embedder):
            return ()
        return [source.point_id(subject) for subject in await self._indexer.unapplied(embedder, limit)]

    async def candidates(
        self, scope: PassageScope, *, mode: SearchMode, text: str, vector: Vector | None, limit: int
    ) -> Candidates:
        """See PassageIndex.candidates."""
        assert scope.embedder is not None  # noqa: S101 - a search has a scope for each embedder
        source = await self._source(scope.embedder)
        query = SearchQuery(mode, text=text, vector=vector, filter=scope_filter(scope), limit=limit)
        try:
            return await self._index.candidates(source.schema.name, query)
        except VectorIndexError as error:
            await self._note(source, error)
            raise VectorIndexUnavailable(f"The vector index is unavailable: {error}.") from error

    async def similarities(self, scope: PassageScope, vector: Vector, point_ids: Sequence[UUID]) -> dict[UUID, float]:
        """See PassageIndex.similarities."""
        assert scope.embedder is not None  # noqa: S101 - a search has a scope for each embedder
        if not point_ids:
            return {}
        source = await self._source(scope.embedder)
        query = SearchQuery(
            SearchMode.DENSE,
            vector=vector,
            # Without further conditions, the points decide alone, which costs the engine less.
            filter=all_of(scope_filter(scope) if scope.filter.narrows else None, HasId(tuple(point_ids))),
            limit=len(point_ids),
            with_payload=False,
        )
        try:
            found = await self._index.search(source.schema.name, query)
        except VectorIndexError as error:
            await self._note(source, error)
            return {}
        return {hit.id: hit.score for hit in found}

    async def vectors(self, embedder: str, point_ids: Sequence[UUID]) -> dict[UUID, tuple[float, ...]]:
        """See PassageIndex.vectors."""
        try:
            source = await self._source(embedder)
            stored = await self._index.get(source.schema.name, point_ids, with_vectors=True)
        except EmbedderUnknown:
            return {}
        except VectorIndexError as error:
            await self._note(source, error)
            return {}
        return {point.id: tuple(point.vector.tolist()) for point in stored if point.vector is not None}

    async def _note(self, source: PassageSource, error: VectorIndexError) -> None:
        if isinstance(error, IndexDamaged):
            await self._indexer.report_damage(source.schema.name, error)
        _log.warning("vector_index_not_read", collection=source.schema.name, error=str(error))

    async def _source(self, handle: str, dimensions: Mapping[str, int] | None = None) -> PassageSource:
        """Returns the source of a collection. Raises EmbedderUnknown if its dimension is not known."""
        if (source := self._sources.get(handle)) is not None:
            return source
        async with self._registering:
            if (source := self._sources.get(handle)) is None:
                dimension = await self._dimension(handle, dimensions)
                schema = collection(handle, dimension)
                source = PassageSource(self._records, schema, CollectionEmbedder(self._embedders, handle, dimension))
                await self._indexer.register(handle, source)
                self._sources[handle] = source
        return source

    async def _dimension(self, handle: str, dimensions: Mapping[str, int] | None) -> int:
        """Returns the length of the vectors. The configuration may have changed since an archive got its embedder."""
        known = dimensions if dimensions is not None else await self._records.embedders()
        return known[handle] if handle in known else self._embedders.get(handle).dimension
