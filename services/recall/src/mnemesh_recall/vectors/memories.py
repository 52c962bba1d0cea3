"""The vectors of episodes and facts, and their update from the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import structlog
from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderError
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.filters import Filter, Match, MatchAny, all_of
from mnemesh_retrieval.index import Collection, NearestIndex, Point, SearchMode, SearchQuery

from mnemesh_recall.errors import EmbedderUnavailable
from mnemesh_recall.model.episode_operations import MemoryText
from mnemesh_recall.model.episodes import Scope
from mnemesh_recall.store.base import EpisodeStore

PREFIX: Final = "memories."
"""The prefix of the names of memory collections."""
MAX_COMPARED: Final = 20_000
"""The number of newest vectors in scope that an index without a graph compares, in addition to `include`."""

_log = structlog.get_logger("mnemesh.recall.memories")


class MemoryVectors:
    """The collection with the vectors of episodes and facts by one embedder."""

    def __init__(self, index: NearestIndex, embedder: Embedder) -> None:
        self._index = index
        self.embedder = embedder
        self.collection = f"{PREFIX}{embedder.handle}"

    async def exists(self) -> bool:
        """Returns whether the index has the collection."""
        return self.collection in await self._index.collections()

    async def open(self) -> None:
        """Opens the collection, or creates it. Collections of other embedders are dropped."""
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
        self,
        organization_id: str,
        kind: str,
        scopes: Sequence[Scope],
        text: str,
        limit: int,
        include: Sequence[str] = (),
    ) -> list[str]:
        """Returns the ids of the memories with the nearest vectors, best first.

        Args:
            organization_id: the organization.
            kind: `episode` or `fact`.
            scopes: the scopes to search; all if empty.
            text: the text whose vector is compared.
            limit: the largest number of ids.
            include: memories that are compared in any case.

        Raises:
            EmbedderUnavailable: the embedder cannot be reached.
        """
        (vector,) = await self._embed([text])
        if not vector.any():
            return []
        filter_: Filter = all_of(
            Match("organization_id", organization_id),
            Match("kind", kind),
            MatchAny("scope", tuple(scope.key for scope in scopes)) if scopes else None,
        )
        query = SearchQuery(
            mode=SearchMode.DENSE,
            vector=vector,
            filter=filter_,
            limit=limit,
            with_payload=False,
            newest=MAX_COMPARED,
            also=tuple(_uuid(id_) for id_ in include),
        )
        return [f"{kind}-{hit.id}" for hit in await self._index.search(self.collection, query) if hit.score > 0]

    async def put(self, memories: Sequence[MemoryText]) -> None:
        """Writes memories. A memory with an empty vector is removed."""
        vectors = await self._embed([memory.text for memory in memories])
        pairs = list(zip(memories, vectors, strict=True))
        if points := [_point(memory, vector) for memory, vector in pairs if vector.any()]:
            await self._index.write(self.collection, points)
        await self.remove([memory.id for memory, vector in pairs if not vector.any()])

    async def remove(self, ids: Sequence[str]) -> None:
        """Removes memories."""
        if ids:
            await self._index.delete(self.collection, [_uuid(id_) for id_ in ids])

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        try:
            return await self.embedder.embed(texts)
        except EmbedderUnreachable as error:
            raise EmbedderUnavailable(self.embedder.handle) from error


class MemoryIndexer:
    """Brings the episodes and facts that the outbox names into the vector index."""

    def __init__(self, store: EpisodeStore, vectors: MemoryVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def open(self) -> None:
        """Opens the collection. If it is new, all episodes and facts are added to the outbox."""
        if not await self._vectors.exists():
            await self._store.enqueue_all()
        await self._vectors.open()

    async def update(self, ids: Sequence[str]) -> None:
        """Makes the index agree with the store about these memories. The update is idempotent."""
        if not ids:
            return
        stored = await self._store.get_texts(ids)
        await self._put(stored)
        stored_ids = {memory.id for memory in stored}
        await self._vectors.remove([id_ for id_ in ids if id_ not in stored_ids])

    async def _put(self, memories: Sequence[MemoryText]) -> None:
        if not memories:
            return
        try:
            await self._vectors.put(memories)
        except EmbedderError as error:
            # A text that the embedder refuses permanently must not block the others.
            if len(memories) == 1:
                _log.warning("memory_not_embedded", memory_id=memories[0].id, error=str(error))
                return
            for memory in memories:
                await self._put([memory])


def _point(memory: MemoryText, vector: Vector) -> Point:
    payload = {
        "organization_id": memory.organization_id,
        "kind": memory.id.partition("-")[0],
        "scope": memory.scope.key,
    }
    return Point(id=_uuid(memory.id), vector=vector, text="", payload=payload)


def _uuid(memory_id: str) -> UUID:
    return UUID(memory_id.partition("-")[2])
