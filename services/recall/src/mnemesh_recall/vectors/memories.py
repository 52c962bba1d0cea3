"""The episodes and facts in the vector index, and what keeps them there up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import structlog
from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderError, EmbedderUnavailable
from mnemesh_retrieval.filters import Filter, Match, MatchAny, all_of
from mnemesh_retrieval.index import Collection, NearestIndex, Point, SearchMode, SearchQuery

from mnemesh_recall.errors import EmbedderAway
from mnemesh_recall.model.episode_operations import MemoryText
from mnemesh_recall.model.episodes import Scope
from mnemesh_recall.store.base import EpisodeStore

PREFIX: Final = "memories."
LOOKED_AT: Final = 20_000
"""Where vectors are compared one by one, so many of the scopes are, those written last; beside those found already."""

_log = structlog.get_logger("mnemesh.recall.memories")


class MemoryVectors:
    """The texts of episodes and facts under one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder) -> None:
        self._index = index
        self.embedder = embedder
        self.collection = f"{PREFIX}{embedder.handle}"

    async def exists(self) -> bool:
        """Whether the collection was made before."""
        return self.collection in await self._index.collections()

    async def open(self) -> None:
        """Makes the collection, or opens it; those of other embedders are dropped."""
        for name in await self._index.collections():
            if name.startswith(PREFIX) and name != self.collection:
                await self._index.drop_collection(name)
        await self._index.ensure_collection(
            Collection(
                self.collection,
                dimension=self.embedder.dimension,
                keyword_fields=("organization_id", "kind", "scope"),
                tenant_field="scope",
            )
        )

    async def search(
        self, organization_id: str, kind: str, scopes: Sequence[Scope], text: str, limit: int, also: Sequence[str] = ()
    ) -> list[str]:
        """Ids of the nearest in meaning, best first; those of `also` are looked at in any case. EmbedderAway."""
        (vector,) = await self._embed([text])
        if not vector.any():
            return []
        narrowed: Filter = all_of(
            Match("organization_id", organization_id),
            Match("kind", kind),
            MatchAny("scope", tuple(scope.key for scope in scopes)) if scopes else None,
        )
        query = SearchQuery(
            mode=SearchMode.DENSE,
            vector=vector,
            filter=narrowed,
            limit=limit,
            with_payload=False,
            newest=LOOKED_AT,
            also=tuple(_uuid(id_) for id_ in also),
        )
        return [f"{kind}-{hit.id}" for hit in await self._index.search(self.collection, query) if hit.score > 0]

    async def put(self, found: Sequence[MemoryText]) -> None:
        """Writes them; those without a vector are taken out."""
        vectors = await self._embed([memory.text for memory in found])
        told = list(zip(found, vectors, strict=True))
        if points := [_point(memory, vector) for memory, vector in told if vector.any()]:
            await self._index.write(self.collection, points)
        await self.forget([memory.id for memory, vector in told if not vector.any()])

    async def forget(self, ids: Sequence[str]) -> None:
        """Takes them out."""
        if ids:
            await self._index.delete(self.collection, [_uuid(id_) for id_ in ids])

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        try:
            return await self.embedder.embed(texts)
        except EmbedderUnavailable as error:
            raise EmbedderAway(self.embedder.handle) from error


class MemoryIndexer:
    """Brings episodes and facts that the outbox names into the vector index."""

    def __init__(self, store: EpisodeStore, vectors: MemoryVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def open(self) -> None:
        """Opens the collection. One that is new is to be filled from all that is stored."""
        if not await self._vectors.exists():
            await self._store.note_all()
        await self._vectors.open()

    async def follow(self, ids: Sequence[str]) -> None:
        """Makes the index agree with the store about these; it can be done again."""
        if not ids:
            return
        found = await self._store.texts(ids)
        await self._put(found)
        there = {memory.id for memory in found}
        await self._vectors.forget([id_ for id_ in ids if id_ not in there])

    async def _put(self, found: Sequence[MemoryText]) -> None:
        if not found:
            return
        try:
            await self._vectors.put(found)
        except EmbedderError as error:
            # One text that the embedder refuses for good must not stop those behind it.
            if len(found) == 1:
                _log.warning("a memory stays without a vector", memory_id=found[0].id, error=str(error))
                return
            for one in found:
                await self._put([one])


def _point(memory: MemoryText, vector: Vector) -> Point:
    payload = {
        "organization_id": memory.organization_id,
        "kind": memory.id.partition("-")[0],
        "scope": memory.scope.key,
    }
    return Point(id=_uuid(memory.id), vector=vector, text="", payload=payload)


def _uuid(memory_id: str) -> UUID:
    return UUID(memory_id.partition("-")[2])
