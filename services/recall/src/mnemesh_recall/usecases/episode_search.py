"""Search of episodes and facts: by words, by meaning, or by both, fused by weighted reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import structlog
from mnemesh_retrieval.fusion import fuse

from mnemesh_recall.errors import EmbedderAway
from mnemesh_recall.language.words import terms
from mnemesh_recall.model.episode_operations import EpisodeFilter, MemoryHits, MemorySearch
from mnemesh_recall.model.search import SearchMode
from mnemesh_recall.store.base import EpisodeStore
from mnemesh_recall.vectors.memories import MemoryVectors

DEPTH: Final = 200
"""So many hits each list offers: the vector index knows nothing of validity and tags, by which the store narrows."""
EMBEDDED_CHARACTERS: Final = 2_000

_log = structlog.get_logger("mnemesh.recall.memories")


class MemoryFinder:
    """Asks the store for words and the vector index for meaning, and fuses what they found."""

    def __init__(self, store: EpisodeStore, vectors: MemoryVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def search(self, organization_id: str, wanted: MemorySearch[Any]) -> MemoryHits[Any]:
        """The best hits, best first; for a blank query the newest.

        Raises:
            EmbedderAway: mode VECTOR, and the embedder cannot be reached. HYBRID goes on with words alone.
        """
        if not wanted.query.strip():
            newest = await self._store.newest(organization_id, wanted.where, wanted.limit)
            return MemoryHits(tuple((memory, 0.0) for memory in newest))
        by_words: list[str] = []
        if wanted.mode is not SearchMode.VECTOR:
            told = await self._store.search_words(organization_id, wanted.where, terms(wanted.query), DEPTH)
            by_words = [id_ for id_, _ in told]
        by_meaning: list[str] = []
        degraded = False
        if wanted.mode is not SearchMode.TEXT:
            try:
                by_meaning = await self._by_meaning(organization_id, wanted, by_words)
            except EmbedderAway as error:
                if wanted.mode is SearchMode.VECTOR:
                    raise
                _log.warning("searching by words alone", error=str(error))
                degraded = True
        return await self._hits(organization_id, wanted, by_words, by_meaning, degraded=degraded)

    async def _by_meaning(self, organization_id: str, wanted: MemorySearch[Any], also: Sequence[str]) -> list[str]:
        query = wanted.query[:EMBEDDED_CHARACTERS]
        return await self._vectors.search(organization_id, _kind(wanted), wanted.where.scopes, query, DEPTH, also)

    async def _hits(
        self,
        organization_id: str,
        wanted: MemorySearch[Any],
        by_words: list[str],
        by_meaning: list[str],
        *,
        degraded: bool,
    ) -> MemoryHits[Any]:
        there = await self._store.pick(organization_id, wanted.where, [*by_words, *by_meaning])
        # Only what the filter admits is a hit, and counts for a rank.
        words, meaning = ([UUID(_bare(id_)) for id_ in ids if id_ in there] for ids in (by_words, by_meaning))
        fused = fuse([(1.0, words), (self._vectors.embedder.hybrid_weight, meaning)])
        kind = _kind(wanted)
        best = fused[: wanted.limit]
        return MemoryHits(tuple((there[f"{kind}-{id_}"], score) for id_, score in best), degraded=degraded)


def _kind(wanted: MemorySearch[Any]) -> str:
    return "episode" if isinstance(wanted.where, EpisodeFilter) else "fact"


def _bare(memory_id: str) -> str:
    return memory_id.partition("-")[2]
