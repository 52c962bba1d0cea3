"""The ranking of one query of a search over all archives in scope."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.scores import REACH, Ranked
from mnemesh_retrieval.ranking.texts import fingerprint, utterance
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_retrieval.words.sparse import WordQuery
from mnemesh_retrieval.words.speakers import name_words, without_names

from mnemesh_archival.model import query_dates, ranking
from mnemesh_archival.model.passages import PassagePosition
from mnemesh_archival.model.search import SearchKind, equal_to
from mnemesh_archival.store.base.passages import Equals, Neighbourhood, PassageScope, PassageStore
from mnemesh_archival.usecases.candidates import CandidateFinder, Found
from mnemesh_archival.vectors.embedders import Embedders

MAX_EQUAL: Final = 200
"""The number of passages with the text of the query that are considered."""


@dataclass(frozen=True, slots=True)
class RankedQuery:
    """A query of a search."""

    text: str
    kind: SearchKind
    named_times: Sequence[TimeRange]
    depth: int
    """The number of hits of the search."""


class RankedSearch:
    """Ranks candidates with what the record knows of them and of their neighbours."""

    def __init__(
        self, passages: PassageStore, finder: CandidateFinder, embedders: Embedders, constants: RankingConstants
    ) -> None:
        self._passages = passages
        self._finder = finder
        self._embedders = embedders
        self._constants = constants

    async def rank(self, query: RankedQuery, scope: PassageScope, found: Sequence[Found]) -> list[Ranked[UUID]]:
        """Returns the passages that match a query, best first.

        Args:
            query: the query.
            scope: all passages in which it searches.
            found: its candidates in each group of archives.
        """
        matches = [match for each in found for match in each.words]
        rarities = ranking.word_rarities(matches, sum(each.group.size for each in found))
        best = ranking.best_by_own_words(matches, rarities, max(ranking.RANKED, 2 * query.depth))
        nearest, around = await self._around(query, scope, found, best)
        if nameless := await self._without_names(query, found, around.positions):
            found = nameless
            nearest, around = await self._around(query, scope, found, best)
        points = dict.fromkeys((*best, *nearest))
        ranked = ranking.PassageRanking(around.positions, matches, rarities, self._constants)
        words, own = WordQuery(query.text), {match.id: match.words for match in matches}
        ranked.score_words(
            {id_: _asked(words, text, own[id_]) for id_, text in around.questions.items()},
            lambda text: words.words_of(text).keys(),
            query_dates.date_scores(query.text, around.positions),
            query.named_times,
        )
        await self._exclude_outside(found, ranked, points.keys() | around.equal.keys())
        likenesses = await self._likenesses(query, found, ranked, nearest)
        return ranked.rank(likenesses, equal_to(query.text, around.equal), query.depth)

    async def _around(
        self, query: RankedQuery, scope: PassageScope, found: Sequence[Found], best: Sequence[UUID]
    ) -> tuple[list[UUID], Neighbourhood]:
        """Returns the most similar passages, and the passages around them and around the best by words."""
        nearest = self._nearest(found, query.depth)
        points = list(dict.fromkeys((*best, *nearest)))
        equals = Equals(fingerprint(query.text), MAX_EQUAL)
        return nearest, await self._passages.neighbours(scope, points, REACH, frozenset(best), equals)

    async def _without_names(
        self, query: RankedQuery, found: Sequence[Found], positions: Sequence[PassagePosition]
    ) -> list[Found] | None:
        """Returns the candidates if embedders that average words get the query without the names of speakers.

        None if that changes nothing.
        """
        averaged = [self._finder.averages_words(each) for each in found]
        if not any(averaged):
            return None
        speakers = {each.speaker for each in positions if each.continuity.is_spoken}
        text = without_names(query.text, frozenset[str]().union(*map(name_words, speakers)))
        if text == query.text:
            return None
        count = ranking.candidates(query.depth)
        return [
            await self._finder.similar_to(each, text, count) if is_average else each
            for each, is_average in zip(found, averaged, strict=True)
        ]

    def _nearest(self, found: Sequence[Found], depth: int) -> list[UUID]:
        """Returns the most similar passages of each group."""
        count = max(ranking.NEAREST, depth)
        return [point for each in found for point, _ in each.dense[:count]]

    async def _exclude_outside(
        self, found: Sequence[Found], ranked: ranking.PassageRanking, candidates: Collection[UUID]
    ) -> None:
        """Excludes neighbours of candidates that the filter excludes."""
        if not found[0].group.scope.filter.narrows:
            return
        if neighbours := [id_ for id_ in ranked.receivers() if id_ not in candidates]:
            scopes = [each.group.scope for each in found]
            inside = await asyncio.gather(*(self._passages.matching(scope, neighbours) for scope in scopes))
            ranked.exclude(set(neighbours).difference(*inside))

    async def _likenesses(
        self, query: RankedQuery, found: Sequence[Found], ranked: ranking.PassageRanking, nearest: Sequence[UUID]
    ) -> list[ranking.Likeness]:
        """Returns the similarities of the candidates, and of their neighbours, by each embedder."""
        likenesses = []
        points = ranked.compared(nearest, query.depth)
        for each in found:
            embedder = self._embedders.get(each.group.embedder) if each.vector is not None else None
            if embedder is None:
                continue
            is_vector = query.kind is SearchKind.VECTOR
            weight = 1.0 if is_vector else self._constants.similarity_weight(embedder)
            least = 0.0 if is_vector else embedder.least_similarity
            if weight:
                # Each group is asked for all: the index knows which passages are in its archives.
                known = await self._finder.similarities(each, points)
                likenesses.append(ranking.Likeness(weight, least, known))
        return likenesses


def _asked(words: WordQuery, text: str, own: Mapping[int, float]) -> Collection[int]:
    """Returns the words of the query in the question sentences of a text, of which it has those of `own`."""
    parts = utterance(text)
    return words.words_of(parts.questions).keys() if parts.statements else own.keys()
