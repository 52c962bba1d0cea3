"""The search of messages: by full text, by vectors, or by both, fused by weighted reciprocal ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import structlog
from mnemesh_kit.principal import Principal
from mnemesh_retrieval.fusion import fuse
from mnemesh_retrieval.index import SearchMode as IndexMode
from mnemesh_retrieval.index import SearchQuery
from mnemesh_types.messages import Message

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.language.words import terms
from mnemesh_recall.model.search import MessageHit, MessageHits, MessageSearch, SearchMode, SearchScope
from mnemesh_recall.model.searchable_text import searchable_text
from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.vectors.messages import MessageVectors
from mnemesh_recall.vectors.vector_points import condition, message_id_of, uuid_of

EMBEDDED_CHARACTERS: Final = 2_000
"""The length of the part of a query that is embedded."""
MAX_COMPARED: Final = 50_000
MAX_COMPARED_IN_ORGANIZATION: Final = 20_000
"""The number of newest vectors that an index without a graph compares: of an agent or a conversation, and of an
organization. In an organization, the full-text hits are compared in addition."""

_log = structlog.get_logger("mnemesh.recall.search")


class MessageFinder:
    """Searches the full-text index and the vector index, and fuses their hits."""

    def __init__(self, store: MessageStore, vectors: MessageVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def search(self, caller: Principal, search: MessageSearch) -> MessageHits:
        """Returns the best hits, best first; for a blank query the newest messages.

        HYBRID uses full text alone if the embedder or the vector index is unavailable.

        Raises:
            EmbedderUnavailable: the mode is VECTOR, and the embedder cannot be reached.
            VectorIndexUnavailable: the mode is VECTOR, and the vector index cannot be read now.
        """
        scope = search.scope
        if not search.query.strip():
            newest = await self._store.list_newest(caller.organization_id, scope, search.limit)
            return MessageHits(tuple(MessageHit(message=message, text=searchable_text(message)) for message in newest))
        depth = max(50, 4 * search.limit)
        match search.mode:
            case SearchMode.TEXT:
                by_text = await self._by_text(caller, search, depth)
                return MessageHits(await self._hits(caller, search, search.mode, by_text, []))
            case SearchMode.VECTOR:
                include = await self._by_text(caller, search, depth) if _is_organization_wide(scope) else []
                by_vector = await self._by_vector(caller, search, depth, include)
                found = await self._hits(caller, search, search.mode, [], by_vector)
                return MessageHits(found, degraded=not self._vectors.is_complete())
            case SearchMode.HYBRID if _is_organization_wide(scope):
                by_text = await self._by_text(caller, search, depth)
                vector_hits = await self._by_vector_if_available(caller, search, depth, by_text)
            case SearchMode.HYBRID:
                by_text, vector_hits = await asyncio.gather(
                    self._by_text(caller, search, depth), self._by_vector_if_available(caller, search, depth)
                )
        mode = SearchMode.TEXT if vector_hits is None else search.mode
        found = await self._hits(caller, search, mode, by_text, vector_hits or [])
        return MessageHits(found, degraded=vector_hits is None or not self._vectors.is_complete())

    async def _by_text(self, caller: Principal, search: MessageSearch, depth: int) -> list[UUID]:
        hits = await self._store.search_fulltext(caller.organization_id, search.scope, terms(search.query), depth)
        return [uuid_of(id_) for id_, score in hits if score > 0]

    async def _by_vector_if_available(
        self, caller: Principal, search: MessageSearch, depth: int, include: Sequence[UUID] = ()
    ) -> list[UUID] | None:
        """Returns None if the embedder or the vector index is unavailable."""
        try:
            return await self._by_vector(caller, search, depth, include)
        except (EmbedderUnavailable, VectorIndexUnavailable) as error:
            _log.warning("vector_search_skipped", error=str(error))
            return None

    async def _by_vector(
        self, caller: Principal, search: MessageSearch, depth: int, include: Sequence[UUID] = ()
    ) -> list[UUID]:
        (vector,) = await self._vectors.embed([search.query[:EMBEDDED_CHARACTERS]])
        if not vector.any():
            return []
        query = SearchQuery(
            mode=IndexMode.DENSE,
            vector=vector,
            filter=condition(caller.organization_id, search.scope),
            limit=depth,
            with_payload=False,
            newest=MAX_COMPARED_IN_ORGANIZATION if _is_organization_wide(search.scope) else MAX_COMPARED,
            also=tuple(include),
        )
        return [hit.id for hit in await self._vectors.nearest(query) if hit.score > 0]

    async def _hits(
        self,
        caller: Principal,
        search: MessageSearch,
        mode: SearchMode,
        by_text: list[UUID],
        by_vector: list[UUID],
    ) -> tuple[MessageHit, ...]:
        best, found = await self._best(caller, search, by_text, by_vector)
        if len(found) < len(best):
            # The vector index lags behind the store: ranks count only messages that still exist. The scope needs no
            # second check, because the agent, conversation, role and time of a message never change.
            ids = [message_id_of(id_) for id_ in by_vector]
            existing = await self._store.filter_searchable(caller.organization_id, ids)
            by_vector = [id_ for id_ in by_vector if message_id_of(id_) in existing]
            best, found = await self._best(caller, search, by_text, by_vector)
        text_ranks = {id_: rank for rank, id_ in enumerate(by_text, start=1)}
        vector_ranks = {id_: rank for rank, id_ in enumerate(by_vector, start=1)}
        return tuple(
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
        )

    async def _best(
        self, caller: Principal, search: MessageSearch, by_text: list[UUID], by_vector: list[UUID]
    ) -> tuple[list[tuple[UUID, float]], dict[UUID, Message]]:
        """Returns the best ids of both lists with their scores, and those of their messages that are searchable."""
        best = fuse([(1.0, by_text), (self._vectors.embedder.hybrid_weight, by_vector)])[: search.limit]
        ids = [message_id_of(id_) for id_, _ in best]
        found = await self._store.get_messages(caller.organization_id, ids)
        return best, {uuid_of(message.id): message for message in found if searchable_text(message)}


def _is_organization_wide(scope: SearchScope) -> bool:
    return scope.agent_id is None and scope.conversation_id is None
