"""The reranking of passages: each candidate is read after the passage before it, if that asks a question."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from mnemesh_retrieval.ranking.scores import Ranked
from mnemesh_retrieval.ranking.texts import utterance
from mnemesh_retrieval.rerankers.reranking import Reranking, readable

from mnemesh_archival.model.passages import Passage
from mnemesh_archival.model.search import PassageSearch
from mnemesh_archival.store.base.passages import PassageScope, PassageStore


class PassageReranking:
    """Orders the best candidates of a search by the reranker, if one is configured and requested."""

    def __init__(self, passages: PassageStore, reranking: Reranking) -> None:
        self._passages = passages
        self._reranking = reranking

    def depth(self, search: PassageSearch) -> int:
        """Returns how many candidates of a search are looked at: those that are returned or reranked."""
        return self._reranking.depth(search.limit, search.rerank)

    async def rerank(
        self, scope: PassageScope, search: PassageSearch, ranked: Sequence[Ranked[UUID]]
    ) -> list[Ranked[UUID]] | None:
        """Returns the new ranking, or None if the first one stays; see `Reranking.rerank`."""
        if not self._reranking.is_requested(search.rerank):
            return None
        first = [each.id for each in ranked[: self._reranking.candidates]]
        found = await self._passages.resolve(scope, first)
        around = await self._passages.around(scope.organization_id, [each.id for each in found.values()], 1, 0)
        questions = {id_: _question(beside.before) for id_, beside in around.items()}
        texts = {
            point: readable(None, passage.text, questions.get(passage.id))
            for point, passage in found.items()
            if passage.text.strip()
        }
        return await self._reranking.rerank(search.queries, ranked, texts)


def _question(before: Sequence[Passage]) -> str | None:
    """Returns the text of the passage before, if that asks a question."""
    return before[-1].text if before and utterance(before[-1].text).asks else None
