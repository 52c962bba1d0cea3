"""The search of episodes and facts: by full text, by vectors, or by both, ranked as messages are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.ranking.constants import DEFAULTS, RankingConstants
from mnemesh_retrieval.ranking.scores import Candidate, fuse_scores
from mnemesh_retrieval.ranking.texts import normalized

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.model.episode_operations import EpisodeFilter, MemoryHits, MemorySearch
from mnemesh_recall.model.episodes import Episode, Fact
from mnemesh_recall.model.search import SearchMode
from mnemesh_recall.store.base import EpisodeStore
from mnemesh_recall.vectors.memories import MemoryVectors

DEPTH: Final = 200
"""The number of hits per index. The vector index has no validity times and tags; the store filters by them later."""
EMBEDDED_CHARACTERS: Final = 2_000

_log = structlog.get_logger("mnemesh.recall.memories")


class MemoryFinder:
    """Searches the terms of memories and the vector index, and fuses the scores of their hits."""

    def __init__(self, store: EpisodeStore, vectors: MemoryVectors, constants: RankingConstants = DEFAULTS) -> None:
        self._store = store
        self._vectors = vectors
        self._constants = constants

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
        by_text: dict[str, float] = {}
        if search.mode is not SearchMode.VECTOR:
            by_text = dict(await self._store.search_fulltext(organization_id, search.filter, search.query, DEPTH))
        by_vector: dict[str, float] = {}
        degraded = search.mode is not SearchMode.VECTOR and not await self._store.has_current_words()
        if search.mode is not SearchMode.TEXT:
            degraded = degraded or not self._vectors.is_complete()
            try:
                by_vector = await self._by_vector(organization_id, search, list(by_text))
            except (EmbedderUnavailable, VectorIndexUnavailable) as error:
                if search.mode is SearchMode.VECTOR:
                    raise
                _log.warning("vector_search_skipped", error=str(error))
                degraded = True
        matching = await self._store.get_matching(organization_id, search.filter, [*by_text, *by_vector])
        return MemoryHits(tuple(self._ranked(search, matching, by_text, by_vector)), degraded=degraded)

    async def _by_vector(
        self, organization_id: str, search: MemorySearch[Any], include: Sequence[str]
    ) -> dict[str, float]:
        query = search.query[:EMBEDDED_CHARACTERS]
        return await self._vectors.search(organization_id, _kind(search), search.filter.scopes, query, DEPTH, include)

    def _ranked(
        self,
        search: MemorySearch[Any],
        matching: Mapping[str, Episode | Fact],
        by_text: Mapping[str, float],
        by_vector: Mapping[str, float],
    ) -> list[tuple[Any, float]]:
        """Returns the best memories that the filter accepts, with their scores."""
        query, embedder = normalized(search.query), self._vectors.embedder
        by_vector_only = search.mode is SearchMode.VECTOR
        candidates = [
            Candidate(
                id_,
                by_text.get(id_, 0.0),
                by_vector.get(id_, 0.0),
                is_exact=normalized(_text(matching[id_])) == query,
            )
            for id_ in dict.fromkeys([*by_text, *by_vector])
            if id_ in matching
        ]
        ranked = fuse_scores(
            candidates,
            1.0 if by_vector_only else self._constants.similarity_weight(embedder),
            self._constants,
            depth=DEPTH,
            least_similarity=0.0 if by_vector_only else embedder.least_similarity,
        )
        return [(matching[each.id], each.score) for each in ranked[: search.limit]]


def _kind(search: MemorySearch[Any]) -> str:
    return "episode" if isinstance(search.filter, EpisodeFilter) else "fact"


def _text(memory: Episode | Fact) -> str:
    return memory.summary if isinstance(memory, Episode) else memory.text
