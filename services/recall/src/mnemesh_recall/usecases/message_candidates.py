"""The candidates of a search of messages: those that match by words, and those that are similar."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import numpy as np
import structlog
from mnemesh_retrieval.embedder import averages_words
from mnemesh_retrieval.index import Comparison, SearchQuery
from mnemesh_retrieval.index import SearchMode as IndexMode
from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.texts import fingerprint
from mnemesh_retrieval.words.speakers import without_names

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.model.candidates import Candidates, Key, id_of
from mnemesh_recall.model.message_ranking import keys_to_compare, speaker_words
from mnemesh_recall.model.search import FindRows, SearchMode, SearchScope, WordCandidates, WordQuery
from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.vectors.messages import MessageVectors
from mnemesh_recall.vectors.vector_points import condition

EMBEDDED_CHARACTERS: Final = 2_000
"""The length of the part of a query that is embedded."""
MAX_COMPARED: Final = 50_000
MAX_COMPARED_IN_ORGANIZATION: Final = 20_000
"""The number of newest vectors that an index without a graph compares: of an agent or a conversation, and of an
organization. In an organization, the candidates by words and their neighbours are compared in addition."""
NEAREST: Final = 12
"""The least number of nearest messages that are candidates, each with the message that follows it. More of them gain at
most .01 in the figures of docs/retrieval.md, and take time."""

_log = structlog.get_logger("mnemesh.recall.search")


@dataclass(frozen=True, slots=True)
class FoundCandidates:
    """The candidates of one query."""

    candidates: Candidates
    rarities: Mapping[str, float]
    """The terms of the query with their rarities; none if words do not count."""
    similarities: Mapping[Key, float] = field(default_factory=dict)
    """The similarities of the candidates and of the messages beside them."""
    mode: SearchMode = SearchMode.TEXT
    """The mode that was applied."""
    row_ids: FindRows | None = None
    """See WordCandidates.row_ids."""
    has_all_words: bool = True
    """See WordCandidates.is_complete."""


class CandidateFinder:
    """Selects the candidates of a query in the full-text index and the vector index."""

    def __init__(self, store: MessageStore, vectors: MessageVectors, constants: RankingConstants) -> None:
        self._store = store
        self._vectors = vectors
        self._constants = constants

    async def find(
        self, organization_id: str, scope: SearchScope, query: str, mode: SearchMode, depth: int
    ) -> FoundCandidates:
        """Returns the candidates of a query, for a ranking of which `depth` texts are looked at.

        HYBRID becomes TEXT if the embedder or the vector index is unavailable.

        Raises:
            EmbedderUnavailable: the mode is VECTOR, and the embedder cannot be reached.
            VectorIndexUnavailable: the mode is VECTOR, and the vector index cannot be read now.
        """
        limit = max(self._constants.word_candidates, 2 * depth)
        asked = WordQuery("" if mode is SearchMode.VECTOR else query, fingerprint(query))
        searched = self._store.search_words(organization_id, scope, asked, limit)
        if mode is SearchMode.TEXT:
            return _by_words(await searched)
        similar = 2 * depth if mode is SearchMode.VECTOR else max(NEAREST, depth)
        compare = self._compare if mode is SearchMode.VECTOR else self._compare_if_available
        searching = asyncio.ensure_future(searched)
        words, comparison = await asyncio.gather(
            searching, compare(organization_id, scope, query, similar, words=searching)
        )
        if comparison is None:
            return _by_words(words)
        added = await self._similar(organization_id, scope, words, comparison)
        if mode is SearchMode.VECTOR and averages_words(self._vectors.embedder):
            # Without words, speakers are known from the similar messages only.
            nameless = without_names(query, speaker_words(added))
            if nameless != query:
                comparison = await self._compare(organization_id, scope, nameless, similar, searching) or comparison
                added = await self._similar(organization_id, scope, words, comparison)
        candidates = words.candidates.joined(added)
        similarities = await self._vectors.similarities(comparison, keys_to_compare(candidates))
        if mode is SearchMode.VECTOR:  # A text that equals the query is a hit once its vector is in the index.
            candidates = candidates.chosen(np.array([key in similarities for key in candidates], np.bool_))
        return replace(_by_words(words), candidates=candidates, similarities=similarities, mode=mode)

    async def _compare_if_available(
        self, organization_id: str, scope: SearchScope, query: str, limit: int, words: Awaitable[WordCandidates]
    ) -> Comparison | None:
        """Returns None if the embedder or the vector index is unavailable."""
        try:
            return await self._compare(organization_id, scope, query, limit, words)
        except (EmbedderUnavailable, VectorIndexUnavailable) as error:
            _log.warning("vector_search_skipped", error=str(error))
            return None

    async def _compare(
        self, organization_id: str, scope: SearchScope, query: str, limit: int, words: Awaitable[WordCandidates]
    ) -> Comparison | None:
        """Compares the vector of a query. Returns None if it has none.

        An embedder that averages words gets the query without the names of speakers among the candidates by `words`.
        In an organization, the candidates by `words` are compared in addition. In this process, words and vectors are
        read in turn: two threads would hand the interpreter lock to each other at every row, which takes longer.
        """
        query = query[:EMBEDDED_CHARACTERS]
        if averages_words(self._vectors.embedder):
            query = without_names(query, speaker_words((await words).candidates))
        (vector,) = await self._vectors.embed([query])
        if not vector.any():
            return None
        include = None
        if _is_organization_wide(scope):
            include = (await words).candidates
        elif self._vectors.index.shares_process:
            await words
        return await self._vectors.compare(
            SearchQuery(
                mode=IndexMode.DENSE,
                vector=vector,
                filter=condition(organization_id, scope),
                limit=limit,
                with_payload=False,
                newest=MAX_COMPARED_IN_ORGANIZATION if _is_organization_wide(scope) else MAX_COMPARED,
                also=tuple(UUID(bytes=key) for key in keys_to_compare(include)) if include is not None else (),
            )
        )

    async def _similar(
        self, organization_id: str, scope: SearchScope, words: WordCandidates, comparison: Comparison
    ) -> Candidates:
        """Returns the similar messages and those that follow them, without the known ones."""
        after = dict(zip(words.candidates.keys, words.candidates.after, strict=True))
        similar = [hit.id.bytes for hit in comparison.hits if hit.score > 0]
        absent = [key for key in similar if key not in after]
        followers = [follower for key in similar if (follower := after.get(key)) and follower not in after]
        keys = list(dict.fromkeys([*absent, *followers]))
        if words.read is not None:
            found = words.read(keys, absent)
        else:
            ids, leaders = list(map(id_of, keys)), list(map(id_of, absent))
            read = await self._store.list_candidates(organization_id, scope, ids, leaders)
            found = Candidates.of(read, tuple(words.rarities))
        return found.chosen(np.array([key not in after for key in found], np.bool_))


def _by_words(words: WordCandidates) -> FoundCandidates:
    return FoundCandidates(words.candidates, words.rarities, row_ids=words.row_ids, has_all_words=words.is_complete)


def _is_organization_wide(scope: SearchScope) -> bool:
    return scope.agent_id is None and scope.conversation_id is None
