"""Searches of a server: by vectors, by words, or by both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from uuid import UUID

from qdrant_client import AsyncQdrantClient, models

from mnemesh_retrieval.index import Candidates, SearchMode, SearchQuery
from mnemesh_retrieval.search_parts import (
    Scored,
    query_vector,
    sorted_matches,
    sorted_scores,
    word_match,
)
from mnemesh_retrieval.server.features import Features
from mnemesh_retrieval.server.filters import server_filter
from mnemesh_retrieval.server.schema import DENSE, TEXT
from mnemesh_retrieval.words.sparse import query_numbers

Target = list[float] | models.SparseVector | None


class PointSearch:
    """Searches collections by their names on the server. The client's errors are raised as they are."""

    def __init__(self, client: AsyncQdrantClient, features: Features) -> None:
        self._client = client
        self._features = features

    async def scored(self, name: str, dimension: int, query: SearchQuery) -> Scored:
        """Returns the nearest points by vector, or those by words."""
        if query.mode is SearchMode.DENSE:
            return await self._nearest(name, query_vector(query, dimension), DENSE, query)
        found = await self._nearest(name, _sparse(_words_of(query)), TEXT, query)
        return [(id_, score) for id_, score in found if score > 0]

    async def candidates(self, name: str, dimension: int, query: SearchQuery) -> Candidates:
        """See VectorIndex.candidates."""
        words = _words_of(query)
        dense, found = await asyncio.gather(
            self._nearest(name, query_vector(query, dimension), DENSE, query),
            self._points(name, _sparse(words), TEXT, query, with_vectors=[TEXT]),
        )
        texts = [
            word_match(UUID(str(point.id)), point.score, words, sparse.indices, sparse.values)
            for point in found
            if words
            and isinstance(point.vector, dict)
            and isinstance(sparse := point.vector[TEXT], models.SparseVector)
        ]
        return Candidates(dense, sorted_matches(texts))

    async def _nearest(self, name: str, target: Target, using: str, query: SearchQuery) -> Scored:
        found = await self._points(name, target, using, query)
        return sorted_scores([(UUID(str(point.id)), point.score) for point in found])

    async def _points(
        self, name: str, target: Target, using: str, query: SearchQuery, with_vectors: bool | list[str] = False
    ) -> list[models.ScoredPoint]:
        if target is None:
            return []
        response = await self._client.query_points(
            name,
            query=target,
            using=using,
            query_filter=server_filter(query.filter, self._features),
            limit=query.limit,
            with_payload=False,
            with_vectors=with_vectors,
        )
        return response.points


def _words_of(query: SearchQuery) -> Mapping[int, int]:
    return query_numbers(query.text) if query.mode is not SearchMode.DENSE else {}


def _sparse(words: Iterable[int]) -> models.SparseVector | None:
    numbers = list(words)
    return models.SparseVector(indices=numbers, values=[1.0] * len(numbers)) if numbers else None
