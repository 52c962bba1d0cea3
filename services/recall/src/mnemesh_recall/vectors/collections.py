"""A collection of the vector index with one embedder, and their failures as errors of the service."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from collections.abc import Collection as AbstractCollection
from typing import TypeVar

from mnemesh_retrieval.embedder import Embedder, Vector
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.errors import IndexDamaged, VectorIndexError
from mnemesh_retrieval.index import Collection, Comparison, Hit, NearestIndex, SearchQuery

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.vectors.status import IndexStatus

T = TypeVar("T")


class VectorCollection:
    """Searches one collection. Without a status, it counts as complete."""

    def __init__(
        self, key: str, index: NearestIndex, embedder: Embedder, schema: Collection, status: IndexStatus | None
    ) -> None:
        self.index = index
        self.embedder = embedder
        self.schema = schema
        self._key = key
        self._status = status

    def is_complete(self) -> bool:
        """Returns whether the index has every record of the collection, except the newest."""
        return self._status is None or self._status.is_complete(self._key)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Returns the vectors of texts. Raises EmbedderUnavailable if the embedder cannot be reached."""
        try:
            return await self.embedder.embed(texts)
        except EmbedderUnreachable as error:
            raise EmbedderUnavailable(self.embedder.handle) from error

    async def nearest(self, query: SearchQuery) -> list[Hit]:
        """Returns the best hits. Raises VectorIndexUnavailable if the index cannot be read now."""
        return await self._reading(self.index.search(self.schema.name, query))

    async def compare(self, query: SearchQuery) -> Comparison:
        """Compares the vector of a query. Raises VectorIndexUnavailable if the index cannot be read now."""
        return await self._reading(self.index.compare(self.schema.name, query))

    async def similarities(self, comparison: Comparison, ids: AbstractCollection[bytes]) -> dict[bytes, float]:
        """Returns the similarities of points. Raises VectorIndexUnavailable if the index cannot be read now."""
        return await self._reading(comparison.similarities(ids))

    async def _reading(self, read: Awaitable[T]) -> T:
        try:
            return await read
        except VectorIndexError as error:
            if isinstance(error, IndexDamaged) and self._status is not None:
                await self._status.report_damage(self.schema.name, error)
            raise VectorIndexUnavailable from error
