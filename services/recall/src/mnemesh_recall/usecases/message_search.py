"""The search of messages: candidates are selected, ranked, reranked if requested, and returned as hits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from mnemesh_kit.principal import Principal
from mnemesh_retrieval.ranking.constants import DEFAULTS, RankingConstants
from mnemesh_retrieval.ranking.scores import Ranked, best_of_queries
from mnemesh_retrieval.rerankers.reranking import Reranking
from mnemesh_retrieval.time_expressions.resolver import TimeRange, resolve

from mnemesh_recall.model.candidates import Key, id_of, key_of
from mnemesh_recall.model.message_ranking import asked_before, rank
from mnemesh_recall.model.search import FindRows, MessageHit, MessageHits, MessageSearch, SearchMode
from mnemesh_recall.model.searchable_text import searchable_text
from mnemesh_recall.store.base import MessageStore
from mnemesh_recall.usecases.hit_surroundings import with_question
from mnemesh_recall.usecases.message_candidates import CandidateFinder, FoundCandidates
from mnemesh_recall.usecases.message_reranking import MessageReranking
from mnemesh_recall.vectors.messages import MessageVectors


class MessageFinder:
    """Searches the full-text index and the vector index, and ranks what they find."""

    def __init__(
        self,
        store: MessageStore,
        vectors: MessageVectors,
        constants: RankingConstants = DEFAULTS,
        reranking: Reranking | None = None,
    ) -> None:
        self._store = store
        self._vectors = vectors
        self._constants = constants
        self._candidates = CandidateFinder(store, vectors, constants)
        self._reranking = MessageReranking(store, reranking or Reranking(None))

    async def search(self, caller: Principal, search: MessageSearch) -> MessageHits:
        """Returns the best hits, best first; for blank queries the newest messages.

        HYBRID uses full text alone if the embedder or the vector index is unavailable.

        Raises:
            EmbedderUnavailable: the mode is VECTOR, and the embedder cannot be reached.
            VectorIndexUnavailable: the mode is VECTOR, and the vector index cannot be read now.
        """
        if not search.queries:
            newest = await self._store.list_newest(caller.organization_id, search.scope, search.limit)
            return MessageHits(tuple(MessageHit(message=message, text=searchable_text(message)) for message in newest))
        ranges = [resolve(query, search.time_zone, search.reference_time) for query in search.queries]
        queries = zip(search.queries, ranges, strict=True)
        rankings = await asyncio.gather(*(self._ranked(caller, search, query, named) for query, named in queries))
        best = best_of_queries([ranking for ranking, _ in rankings])[: self._reranking.depth(search)]
        ranked = [Ranked(id_of(each.id), *each[1:]) for each in best]
        mode = next((found.mode for _, found in rankings if found.mode is not search.mode), search.mode)
        asked = {key: asking for _, found in rankings for key, asking in asked_before(found.candidates).items()}
        questions = {id_of(each.id): id_of(asked[each.id]) for each in best if each.id in asked}
        reranked = await self._reranking.rerank(caller, search, ranked, questions)
        find_rows = next((found.row_ids for _, found in rankings if found.row_ids is not None), None)
        hits = await self._hits(caller, (reranked or ranked)[: search.limit], questions, mode, find_rows)
        is_complete = search.mode is SearchMode.TEXT or (mode is search.mode and self._vectors.is_complete())
        if search.mode is not SearchMode.VECTOR:
            is_complete = is_complete and all(found.has_all_words for _, found in rankings)
        return MessageHits(
            hits,
            degraded=not is_complete,
            reranked=reranked is not None,
            time_ranges=tuple(dict.fromkeys(itertools.chain.from_iterable(ranges))),
        )

    async def _ranked(
        self, caller: Principal, search: MessageSearch, query: str, named_times: Sequence[TimeRange]
    ) -> tuple[list[Ranked[Key]], FoundCandidates]:
        """Returns the ranking of one query, and what was ranked."""
        depth = self._reranking.depth(search)
        found = await self._candidates.find(caller.organization_id, search.scope, query, search.mode, depth)
        embedder = self._vectors.embedder
        by_vector_only = found.mode is SearchMode.VECTOR
        ranked = rank(
            found.candidates,
            found.rarities,
            found.similarities,
            1.0 if by_vector_only else self._constants.similarity_weight(embedder),
            named_times,
            self._constants,
            depth=2 * depth,
            least_similarity=0.0 if by_vector_only else embedder.least_similarity,
        )
        return ranked, found

    async def _hits(
        self,
        caller: Principal,
        ranked: Sequence[Ranked[str]],
        questions: Mapping[str, str],
        mode: SearchMode,
        find_rows: FindRows | None,
    ) -> tuple[MessageHit, ...]:
        """Returns the messages of a ranking with their questions, without those that were deleted meanwhile."""
        asked = (questions[each.id] for each in ranked if each.id in questions)
        ids = list(dict.fromkeys([*(each.id for each in ranked), *asked]))
        row_ids = find_rows(map(key_of, ids)) if find_rows is not None else {}
        known = {id_of(key): row_id for key, row_id in row_ids.items()}
        messages = await self._store.get_messages(caller.organization_id, ids, known)
        found = {message.id: (message, searchable_text(message)) for message in messages}
        hits = (
            MessageHit(
                message=found[each.id][0],
                text=found[each.id][1],
                score=each.score,
                text_score=each.text_score,
                text_rank=each.text_rank,
                vector_score=each.vector_score,
                vector_rank=each.vector_rank,
                rerank_score=each.rerank_score,
                mode=mode,
            )
            for each in ranked
            if each.id in found and found[each.id][1]
        )
        return tuple(with_question(hit, found.get(questions.get(hit.message.id, ""), (None, ""))[0]) for hit in hits)
