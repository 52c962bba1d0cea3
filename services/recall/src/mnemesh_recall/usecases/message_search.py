"""The search of messages: candidates are selected, ranked, reranked if requested, and returned as hits."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from uuid import UUID

import numpy as np
import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_retrieval.embedder import averages_words
from mnemesh_retrieval.index import Comparison, SearchMode, SearchQuery
from mnemesh_retrieval.ranking.scores import DEFAULTS, Ranked, best_of_queries, fingerprint, utterance
from mnemesh_retrieval.rerankers.reranking import Reranking, readable
from mnemesh_retrieval.time_expressions.resolver import TimeRange, resolve
from mnemesh_retrieval.words.sparse import without_names
from mnemesh_types.messages import Message, Role

from mnemesh_recall.errors import EmbedderUnavailable, VectorIndexUnavailable
from mnemesh_recall.model.ranking import (
    Candidates,
    Key,
    asked_before,
    id_of,
    keys_to_compare,
    rank,
    speaker_words,
)
from mnemesh_recall.model.search import (
    MessageHit,
    MessageHits,
    MessageSearch,
    SearchScope,
    Surroundings,
    WordCandidates,
    WordQuery,
    embedded_text,
    searchable_text,
    speaker_of,
)
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.vectors import MessageVectors, condition

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
    has_all_words: bool = True
    """See WordCandidates.is_complete."""


class CandidateFinder:
    """Selects the candidates of a query in the full-text index and the vector index."""

    def __init__(self, store: MessageStore, vectors: MessageVectors) -> None:
        self._store = store
        self._vectors = vectors

    async def find(
        self, organization_id: str, scope: SearchScope, query: str, mode: SearchMode, depth: int
    ) -> FoundCandidates:
        """Returns the candidates of a query, for a ranking of which `depth` texts are looked at.

        HYBRID becomes TEXT if the embedder or the vector index is unavailable.

        Raises:
            EmbedderUnavailable: the mode is VECTOR, and the embedder cannot be reached.
            VectorIndexUnavailable: the mode is VECTOR, and the vector index cannot be read now.
        """
        limit = max(DEFAULTS.word_candidates, 2 * depth)
        asked = WordQuery("" if mode is SearchMode.VECTOR else query, fingerprint(query))
        # Words and vectors are read in turn: two threads would hand the interpreter lock to each other at every row,
        # which takes longer. The vector of a query may depend on the speakers that were found by words.
        words = await self._store.search_words(organization_id, scope, asked, limit)
        if mode is SearchMode.TEXT:
            return _by_words(words)
        similar = 2 * depth if mode is SearchMode.VECTOR else max(NEAREST, depth)
        compare = self._compare if mode is SearchMode.VECTOR else self._compare_if_available
        comparison = await compare(organization_id, scope, query, similar, words.candidates)
        if comparison is None:
            return _by_words(words)
        added = await self._similar(organization_id, scope, words, comparison)
        if mode is SearchMode.VECTOR and averages_words(self._vectors.embedder):
            # Without words, speakers are known from the similar messages only.
            nameless = without_names(query, speaker_words(added))
            if nameless != query:
                comparison = (
                    await self._compare(organization_id, scope, nameless, similar, words.candidates) or comparison
                )
                added = await self._similar(organization_id, scope, words, comparison)
        candidates = words.candidates.joined(added)
        similarities = await self._vectors.similarities(comparison, keys_to_compare(candidates))
        if mode is SearchMode.VECTOR:  # A text that equals the query is a hit once its vector is in the index.
            candidates = candidates.chosen(np.array([key in similarities for key in candidates], np.bool_))
        return replace(_by_words(words), candidates=candidates, similarities=similarities, mode=mode)

    async def _compare_if_available(
        self, organization_id: str, scope: SearchScope, query: str, limit: int, by_words: Candidates
    ) -> Comparison | None:
        """Returns None if the embedder or the vector index is unavailable."""
        try:
            return await self._compare(organization_id, scope, query, limit, by_words)
        except (EmbedderUnavailable, VectorIndexUnavailable) as error:
            _log.warning("vector_search_skipped", error=str(error))
            return None

    async def _compare(
        self, organization_id: str, scope: SearchScope, query: str, limit: int, by_words: Candidates
    ) -> Comparison | None:
        """Compares the vector of a query. Returns None if it has none.

        An embedder that averages words gets the query without the names of speakers among the candidates by words. In
        an organization, the candidates by words are compared in addition.
        """
        query = query[:EMBEDDED_CHARACTERS]
        if averages_words(self._vectors.embedder):
            query = without_names(query, speaker_words(by_words))
        (vector,) = await self._vectors.embed([query])
        if not vector.any():
            return None
        is_wide = scope.agent_id is None and scope.conversation_id is None
        return await self._vectors.compare(
            SearchQuery(
                mode=SearchMode.VECTOR,
                vector=vector,
                filter=condition(organization_id, scope),
                limit=limit,
                with_payload=False,
                newest=MAX_COMPARED_IN_ORGANIZATION if is_wide else MAX_COMPARED,
                also=tuple(UUID(bytes=key) for key in keys_to_compare(by_words)) if is_wide else (),
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
        ids, leaders = list(map(id_of, keys)), list(map(id_of, absent))
        read = await self._store.list_candidates(organization_id, scope, ids, leaders)
        found = Candidates.of(read, tuple(words.rarities))
        return found.chosen(np.array([key not in after for key in found], np.bool_))


def _by_words(words: WordCandidates) -> FoundCandidates:
    return FoundCandidates(words.candidates, words.rarities, has_all_words=words.is_complete)


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


LONGEST_PAUSE: Final = timedelta(hours=6)
"""The longest time between a question and its answer."""


async def with_surroundings(
    store: MessageStore, caller: Principal, search: MessageSearch, hits: Sequence[MessageHit]
) -> tuple[MessageHit, ...]:
    """Returns the hits with the messages around them that the search requests, and with their questions.

    Hits of a query have their questions already; see `MessageFinder`.
    """
    if search.queries and not search.messages_before and not search.messages_after:
        return tuple(hits)
    ids = [hit.message.id for hit in hits]
    around = await store.read_around(caller.organization_id, ids, max(1, search.messages_before), search.messages_after)
    return tuple(_with(hit, around.get(hit.message.id, Surroundings()), search) for hit in hits)


def with_question(hit: MessageHit, previous: Message | None) -> MessageHit:
    """Returns the hit with the message before it, if that asks a question which the hit may answer."""
    return replace(hit, question=previous) if previous is not None and _may_answer(previous, hit) else hit


def _with(hit: MessageHit, around: Surroundings, search: MessageSearch) -> MessageHit:
    before = around.before[-search.messages_before :] if search.messages_before else ()
    previous = around.before[-1] if around.before else None
    return with_question(replace(hit, before=before, after=around.after, question=None), previous)


def _may_answer(previous: Message, hit: MessageHit) -> bool:
    """Returns whether a message asks a question, and the hit is what another speaker said soon after it."""
    asked = searchable_text(previous)
    is_soon = hit.message.created_at - previous.created_at <= LONGEST_PAUSE
    return is_soon and _speaker(previous, asked) != _speaker(hit.message, hit.text) and utterance(asked).asks


def _speaker(message: Message, text: str) -> tuple[Role, str]:
    return message.role, speaker_of(message, text)


class MessageFinder:
    """Searches the full-text index and the vector index, and ranks what they find."""

    def __init__(
        self,
        store: MessageStore,
        vectors: MessageVectors,
        reranking: Reranking | None = None,
    ) -> None:
        self._store = store
        self._vectors = vectors
        self._candidates = CandidateFinder(store, vectors)
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
        rankings = await asyncio.gather(*(self._rank(caller, search, query, named) for query, named in queries))
        best = best_of_queries([ranking for ranking, _ in rankings])[: self._reranking.depth(search)]
        ranked = [Ranked(id_of(each.id), *each[1:]) for each in best]
        mode = next((found.mode for _, found in rankings if found.mode is not search.mode), search.mode)
        asked = {key: asking for _, found in rankings for key, asking in asked_before(found.candidates).items()}
        questions = {id_of(each.id): id_of(asked[each.id]) for each in best if each.id in asked}
        reranked = await self._reranking.rerank(caller, search, ranked, questions)
        hits = await self._hits(caller, (reranked or ranked)[: search.limit], questions, mode)
        is_complete = search.mode is SearchMode.TEXT or (mode is search.mode and self._vectors.is_complete())
        if search.mode is not SearchMode.VECTOR:
            is_complete = is_complete and all(found.has_all_words for _, found in rankings)
        return MessageHits(
            hits,
            degraded=not is_complete,
            reranked=reranked is not None,
            time_ranges=tuple(dict.fromkeys(itertools.chain.from_iterable(ranges))),
        )

    async def _rank(
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
            1.0 if by_vector_only else embedder.similarity_weight,
            named_times,
            DEFAULTS,
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
    ) -> tuple[MessageHit, ...]:
        """Returns the messages of a ranking with their questions, without those that were deleted meanwhile."""
        asked = (questions[each.id] for each in ranked if each.id in questions)
        ids = list(dict.fromkeys([*(each.id for each in ranked), *asked]))
        messages = await self._store.get_messages(caller.organization_id, ids)
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
