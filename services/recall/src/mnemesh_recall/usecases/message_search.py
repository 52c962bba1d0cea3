"""Search of messages: by words, by meaning, or by both, fused by weighted reciprocal ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import structlog
from mnemesh_retrieval.fusion import fuse
from mnemesh_retrieval.index import SearchMode as IndexMode
from mnemesh_retrieval.index import SearchQuery

from mnemesh_recall.errors import EmbedderAway
from mnemesh_recall.language.words import terms
from mnemesh_recall.model.messages import Message
from mnemesh_recall.model.search import MessageHit, MessageSearch, SearchMode
from mnemesh_recall.model.searchable_text import searchable_text
from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.vectors.messages import MessageVectors
from mnemesh_recall.vectors.vector_points import condition, uuid_of

EMBEDDED_CHARACTERS: Final = 2_000
"""So much of a query is embedded: what a longer one means is in its beginning."""
LOOKED_AT: Final = 50_000
LOOKED_AT_ANYWHERE: Final = 20_000
"""Where vectors are compared one by one, so many of an agent or a conversation are, the newest; and of an organization,
beside those that the words have found."""

_log = structlog.get_logger("mnemesh.recall.search")


class MessageFinder:
    """Asks the word index and the vector index, and fuses what they found."""

    def __init__(self, store: MessageStore, vectors: MessageVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def search(self, wanted: MessageSearch) -> list[MessageHit]:
        """The best hits, best first; for a blank query the newest messages.

        Raises:
            EmbedderAway: mode VECTOR, and the embedder cannot be reached. HYBRID goes on with words alone.
        """
        if not wanted.query.strip():
            newest = await self._store.newest(wanted.scope, wanted.limit)
            return [MessageHit(message=message, text=searchable_text(message)) for message in newest]
        depth = max(50, 4 * wanted.limit)
        match wanted.mode:
            case SearchMode.TEXT:
                return await self._hits(wanted, wanted.mode, await self._by_words(wanted, depth), [])
            case SearchMode.VECTOR:
                also = await self._by_words(wanted, depth) if _is_anywhere(wanted) else []
                return await self._hits(wanted, wanted.mode, [], await self._by_meaning(wanted, depth, also))
            case SearchMode.HYBRID if _is_anywhere(wanted):
                by_words = await self._by_words(wanted, depth)
                by_meaning = await self._by_meaning_if_there(wanted, depth, by_words)
            case SearchMode.HYBRID:
                by_words, by_meaning = await asyncio.gather(
                    self._by_words(wanted, depth), self._by_meaning_if_there(wanted, depth)
                )
        mode = SearchMode.TEXT if by_meaning is None else wanted.mode
        return await self._hits(wanted, mode, by_words, by_meaning or [])

    async def _by_words(self, wanted: MessageSearch, depth: int) -> list[UUID]:
        found = await self._store.search_words(wanted.scope, terms(wanted.query), depth)
        return [uuid_of(id_) for id_, score in found if score > 0]

    async def _by_meaning_if_there(
        self, wanted: MessageSearch, depth: int, also: Sequence[UUID] = ()
    ) -> list[UUID] | None:
        """None where the embedder cannot be reached."""
        try:
            return await self._by_meaning(wanted, depth, also)
        except EmbedderAway as error:
            _log.warning("searching by words alone", error=str(error))
            return None

    async def _by_meaning(self, wanted: MessageSearch, depth: int, also: Sequence[UUID] = ()) -> list[UUID]:
        (vector,) = await self._vectors.embed([wanted.query[:EMBEDDED_CHARACTERS]])
        if not vector.any():
            return []
        query = SearchQuery(
            mode=IndexMode.DENSE,
            vector=vector,
            filter=condition(wanted.scope),
            limit=depth,
            with_payload=False,
            newest=LOOKED_AT_ANYWHERE if _is_anywhere(wanted) else LOOKED_AT,
            also=tuple(also),
        )
        hits = await self._vectors.index.search(self._vectors.collection, query)
        return [hit.id for hit in hits if hit.score > 0]

    async def _hits(
        self, wanted: MessageSearch, mode: SearchMode, by_words: list[UUID], by_meaning: list[UUID]
    ) -> list[MessageHit]:
        best, found = await self._best(wanted, by_words, by_meaning)
        if len(found) < len(best):
            # The vector index follows: only what the store still has is a hit, and then counts for a rank. What a scope
            # asks of a message (its agent, conversation, role and time) never changes, so the index was right about it.
            there = await self._store.searchable(wanted.scope.organization_id, [_id(id_) for id_ in by_meaning])
            by_meaning = [id_ for id_ in by_meaning if _id(id_) in there]
            best, found = await self._best(wanted, by_words, by_meaning)
        text_ranks = {id_: rank for rank, id_ in enumerate(by_words, start=1)}
        vector_ranks = {id_: rank for rank, id_ in enumerate(by_meaning, start=1)}
        return [
            MessageHit(
                message=found[id_],
                text=searchable_text(found[id_]),
                score=score,
                vector_rank=vector_ranks.get(id_),
                text_rank=text_ranks.get(id_),
                mode=mode,
            )
            for id_, score in best
            if id_ in found
        ]

    async def _best(
        self, wanted: MessageSearch, by_words: list[UUID], by_meaning: list[UUID]
    ) -> tuple[list[tuple[UUID, float]], dict[UUID, Message]]:
        """The best of both lists with their scores, and those of them that the store has and that say something."""
        best = fuse([(1.0, by_words), (self._vectors.embedder.hybrid_weight, by_meaning)])[: wanted.limit]
        found = await self._store.get_messages(wanted.scope.organization_id, [_id(id_) for id_, _ in best])
        return best, {uuid_of(message.id): message for message in found if searchable_text(message)}


def _is_anywhere(wanted: MessageSearch) -> bool:
    """Whether a search goes over all of an organization."""
    return wanted.scope.agent_id is None and wanted.scope.conversation_id is None


def _id(point_id: UUID) -> str:
    return f"message-{point_id}"
