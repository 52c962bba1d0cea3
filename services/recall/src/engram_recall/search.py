"""Search of messages: by words, by meaning, or by both, fused by weighted reciprocal ranks."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog
from engram_retrieval.fusion import fuse
from engram_retrieval.index import SearchMode as IndexMode
from engram_retrieval.index import SearchQuery

from engram_recall.commands import MessageHit, MessageSearch, SearchMode
from engram_recall.errors import EmbedderAway
from engram_recall.indexer import MessageVectors
from engram_recall.points import condition, uuid_of
from engram_recall.speech import speech
from engram_recall.store.base import RecallStore
from engram_recall.words import terms

EMBEDDED_CHARACTERS: Final = 2_000
"""So much of a query is embedded: what a longer one means is in its beginning."""

_log = structlog.get_logger("engram.recall.search")


class MessageFinder:
    """Asks the word index and the vector index, and fuses what they found."""

    def __init__(self, store: RecallStore, vectors: MessageVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def search(self, wanted: MessageSearch) -> list[MessageHit]:
        """The best hits, best first; for a blank query the newest messages.

        Raises:
            EmbedderAway: mode VECTOR, and the embedder cannot be reached. HYBRID goes on with words alone.
        """
        if not wanted.query.strip():
            newest = await self._store.newest(wanted.scope, wanted.limit)
            return [MessageHit(message=message, text=speech(message)) for message in newest]
        mode, depth = wanted.mode, max(50, 4 * wanted.limit)
        by_words: list[UUID] = []
        if mode is not SearchMode.VECTOR:
            found = await self._store.search_words(wanted.scope, terms(wanted.query), depth)
            by_words = [uuid_of(id_) for id_, score in found if score > 0]
        by_meaning: list[UUID] = []
        if mode is not SearchMode.TEXT:
            try:
                by_meaning = await self._by_meaning(wanted, depth)
            except EmbedderAway as error:
                if mode is SearchMode.VECTOR:
                    raise
                _log.warning("searching by words alone", error=str(error))
                mode = SearchMode.TEXT
        return await self._hits(wanted, mode, by_words, by_meaning)

    async def _by_meaning(self, wanted: MessageSearch, depth: int) -> list[UUID]:
        (vector,) = await self._vectors.embed([wanted.query[:EMBEDDED_CHARACTERS]])
        if not vector.any():
            return []
        query = SearchQuery(
            mode=IndexMode.DENSE, vector=vector, filter=condition(wanted.scope), limit=depth, with_payload=False
        )
        hits = await self._vectors.index.search(self._vectors.collection, query)
        return [hit.id for hit in hits if hit.score > 0]

    async def _hits(
        self, wanted: MessageSearch, mode: SearchMode, by_words: list[UUID], by_meaning: list[UUID]
    ) -> list[MessageHit]:
        # The vector index follows: only what the store still has is a hit, and counts for a rank. What a scope asks
        # of a message (its agent, conversation, role and time) never changes, so the index was right about it.
        organization_id = wanted.scope.organization_id
        known = set(by_words)
        there = await self._store.searchable(organization_id, [_id(id_) for id_ in by_meaning if id_ not in known])
        by_meaning = [id_ for id_ in by_meaning if id_ in known or _id(id_) in there]
        weight = self._vectors.embedder.hybrid_weight
        fused = fuse([(1.0, by_words), (weight, by_meaning)])
        text_ranks = {id_: rank for rank, id_ in enumerate(by_words, start=1)}
        vector_ranks = {id_: rank for rank, id_ in enumerate(by_meaning, start=1)}
        best = fused[: wanted.limit]
        found = await self._store.get_messages(organization_id, [_id(id_) for id_, _ in best])
        messages = {message.id: message for message in found}
        return [
            MessageHit(
                message=(message := messages[_id(id_)]),
                text=speech(message),
                score=score,
                vector_rank=vector_ranks.get(id_),
                text_rank=text_ranks.get(id_),
                mode=mode,
            )
            for id_, score in best
            if _id(id_) in messages
        ]


def _id(point_id: UUID) -> str:
    return f"message-{point_id}"
