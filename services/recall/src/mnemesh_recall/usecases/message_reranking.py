"""The reranking of messages: each candidate is read with its speaker, after the question that it may answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mnemesh_kit.principal import Principal
from mnemesh_retrieval.ranking.scores import Ranked
from mnemesh_retrieval.rerankers.reranking import Reranking, readable

from mnemesh_recall.model.search import MessageSearch
from mnemesh_recall.model.searchable_text import embedded_text
from mnemesh_recall.store.base import MessageStore


class MessageReranking:
    """Orders the best candidates of a search by the reranker, if one is configured and requested."""

    def __init__(self, store: MessageStore, reranking: Reranking) -> None:
        self._store = store
        self._reranking = reranking

    def depth(self, search: MessageSearch) -> int:
        """Returns how many candidates of a search are looked at: those that are returned or reranked."""
        return self._reranking.depth(search.limit, search.rerank)

    async def rerank(
        self, caller: Principal, search: MessageSearch, ranked: Sequence[Ranked[str]], questions: Mapping[str, str]
    ) -> list[Ranked[str]] | None:
        """Returns the new ranking, or None if the first one stays; see `Reranking.rerank`.

        `questions` has the ids of the messages that ask a question before candidates.
        """
        if not self._reranking.is_requested(search.rerank):
            return None
        first = [each.id for each in ranked[: self._reranking.candidates]]
        asked = [questions[id_] for id_ in first if id_ in questions]
        messages = await self._store.get_messages(caller.organization_id, list(dict.fromkeys([*first, *asked])))
        texts = {message.id: text for message in messages if (text := embedded_text(message))}
        read = {
            id_: readable(None, texts[id_], texts.get(questions[id_]) if id_ in questions else None)
            for id_ in first
            if id_ in texts
        }
        return await self._reranking.rerank(search.queries, ranked, read)
