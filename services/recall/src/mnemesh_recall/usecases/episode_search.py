"""The search of episodes and facts: by full text, by vectors, or by both, fused by weighted reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import structlog
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.fusion import fuse

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.language.words import terms
from mnemesh_recall.model.episode_operations import EpisodeFilter, MemoryHits, MemorySearch
from mnemesh_recall.model.search import SearchMode
from mnemesh_recall.store.base import EpisodeStore
from mnemesh_recall.vectors.memories import MemoryVectors

DEPTH: Final = 200
"""The number of hits per index. The vector index has no validity times and tags; the store filters by them later."""
EMBEDDED_CHARACTERS: Final = 2_000

_log = structlog.get_logger("mnemesh.recall.memories")


class MemoryFinder:
    """Searches the terms of memories and the vector index, and fuses their hits."""

    def __init__(self, store: EpisodeStore, vectors: MemoryVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def search(self, caller: Principal, search: MemorySearch[Any]) -> MemoryHits[Any]:
        """Returns the best hits, best first; for a blank query the newest memories.

        Raises:
            EmbedderUnavailable: the mode is VECTOR, and the embedder cannot be reached. HYBRID uses full text alone.
            VectorIndexUnavailable: the mode is VECTOR, and the vector index cannot be read now.
        """
        organization_id = caller.organization_id
        if not search.query.strip():
            newest = await self._store.list_newest(organization_id, search.filter, search.limit)
            return MemoryHits(tuple((memory, 0.0) for memory in newest))
        by_text: list[str] = []
        if search.mode is not SearchMode.VECTOR:
            hits = await self._store.search_fulltext(organization_id, search.filter, terms(search.query), DEPTH)
            by_text = [id_ for id_, _ in hits]
        by_vector: list[str] = []
        degraded = False
        if search.mode is not SearchMode.TEXT:
            degraded = not self._vectors.is_complete()
            try:
                by_vector = await self._by_vector(organization_id, search, by_text)
            except (EmbedderUnavailable, VectorIndexUnavailable) as error:
                if search.mode is SearchMode.VECTOR:
                    raise
                _log.warning("vector_search_skipped", error=str(error))
                degraded = True
        return await self._hits(organization_id, search, by_text, by_vector, degraded=degraded)

    async def _by_vector(self, organization_id: str, search: MemorySearch[Any], include: Sequence[str]) -> list[str]:
        query = search.query[:EMBEDDED_CHARACTERS]
        return await self._vectors.search(organization_id, _kind(search), search.filter.scopes, query, DEPTH, include)

    async def _hits(
        self,
        organization_id: str,
        search: MemorySearch[Any],
        by_text: list[str],
        by_vector: list[str],
        *,
        degraded: bool,
    ) -> MemoryHits[Any]:
        matching = await self._store.get_matching(organization_id, search.filter, [*by_text, *by_vector])
        # Ranks count only memories that the filter accepts.
        text_ids, vector_ids = ([_uuid(id_) for id_ in ids if id_ in matching] for ids in (by_text, by_vector))
        fused = fuse([(1.0, text_ids), (self._vectors.embedder.hybrid_weight, vector_ids)])
        kind = _kind(search)
        best = fused[: search.limit]
        return MemoryHits(tuple((matching[f"{kind}-{id_}"], score) for id_, score in best), degraded=degraded)


def _kind(search: MemorySearch[Any]) -> str:
    return "episode" if isinstance(search.filter, EpisodeFilter) else "fact"


def _uuid(memory_id: str) -> UUID:
    return UUID(memory_id.partition("-")[2])
