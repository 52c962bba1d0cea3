"""The fusion of scores by words and by similarity, of one query or several."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from mnemesh_retrieval.ranking.constants import RankingConstants

Id = TypeVar("Id", bound=Hashable)
EXACT: Final = 10.0
"""Added to the score of a text that equals the query. No other part of a score reaches it."""


# Named tuples, because a search makes hundreds: a frozen dataclass takes four times as long to make.
class Candidate(NamedTuple, Generic[Id]):
    """A text that a search considers."""

    id: Id
    text_score: float = 0.0
    """The score by words; see `words.limited`. 0 if neither the text nor a neighbour has a word of the query."""
    vector_score: float = 0.0
    """The similarity with the shares of neighbours; see `strands.shared_similarity`. 0 if unknown or none."""
    factor: float = 1.0
    """The product of its factors: question, speaker, time."""
    is_exact: bool = False
    """Whether the text equals the query; see `exact.normalized`."""


class Ranked(NamedTuple, Generic[Id]):
    """A text in the order of a search."""

    id: Id
    score: float
    """Comparable within one answer."""
    text_score: float | None = None
    """None if the text is not in the list by words. The rank counts from 1."""
    text_rank: int | None = None
    vector_score: float | None = None
    """None if the text is not in the list by similarity."""
    vector_rank: int | None = None
    is_exact: bool = False
    rerank_score: float | None = None
    """None if no reranker scored the text."""


_score: Final = itemgetter(1)
"""The score of a Ranked. A reverse sort keeps the order of equal scores."""


def factor(constants: RankingConstants, *, ends_in_question: bool, is_named_speaker: bool, time: float = 1.0) -> float:
    """Returns the factor of a text.

    Args:
        constants: the constants of the ranking.
        ends_in_question: whether the text ends in a question.
        is_named_speaker: whether the query names the speaker of the text.
        time: the factor of its time; see `times.time_factor`.
    """
    question = constants.question_factor if ends_in_question else 1.0
    return question * (constants.speaker_factor if is_named_speaker else 1.0) * time


def fuse_scores(
    candidates: Iterable[Candidate[Id]],
    similarity_weight: float,
    constants: RankingConstants,
    *,
    depth: int = 0,
    least_similarity: float = 0.0,
) -> list[Ranked[Id]]:
    """Returns the candidates that match by words or by similarity, best first. Equal scores keep their order.

    A score is the factor of the text, times the sum of its score by words relative to the best one, and its similarity
    relative to the best one times the weight. Texts that are in neither list are left out.

    Args:
        candidates: the candidates, in the order of preference, such as newest first.
        similarity_weight: the weight of similarities, where words weigh 1; `Embedder.similarity_weight` for hybrid
            search. 0 ignores similarities.
        constants: the constants of the ranking.
        depth: the least length of each list, if a search returns more hits than usual.
        least_similarity: a text without a word of the query is similar only above this;
            `Embedder.least_similarity` for hybrid search.
    """
    known = list(candidates)
    by_words = _best(
        [(each.text_score * each.factor, each.id) for each in known], max(depth, constants.word_candidates)
    )
    by_similarity: dict[Id, int] = {}
    if similarity_weight:
        scored = [
            (each.vector_score * each.factor, each.id)
            for each in known
            if each.text_score > 0 or each.vector_score > least_similarity
        ]
        by_similarity = _best(scored, max(depth, constants.similarity_candidates))
    best_words = max((each.text_score for each in known), default=0.0)
    best_similarity = max((each.vector_score for each in known), default=0.0)
    word_scale = 1 / best_words if best_words > 0 else 0.0
    similarity_scale = similarity_weight / best_similarity if best_similarity > 0 else 0.0
    found = []
    for id_, text_score, vector_score, factor_, is_exact in known:
        text_rank, vector_rank = by_words.get(id_), by_similarity.get(id_)
        if text_rank is None and vector_rank is None and not is_exact:
            continue
        score = (text_score * word_scale + max(0.0, vector_score) * similarity_scale) * factor_
        found.append(
            Ranked(
                id_,
                score + EXACT if is_exact else score,
                text_score if text_rank is not None else None,
                text_rank,
                vector_score if vector_rank is not None else None,
                vector_rank,
                is_exact,
            )
        )
    return sorted(found, key=_score, reverse=True)


def best_of_queries(rankings: Sequence[Sequence[Ranked[Id]]]) -> list[Ranked[Id]]:
    """Fuses the rankings of several queries. A text counts with its best score relative to the first of that query.

    A single ranking is returned as it is.
    """
    if len(rankings) == 1:
        return list(rankings[0])
    best: dict[Id, Ranked[Id]] = {}
    for ranking in rankings:
        top = max((each.score - EXACT * each.is_exact for each in ranking), default=0.0)
        for each in ranking:
            own = each.score - EXACT * each.is_exact
            score = (own / top if top > 0 else 0.0) + (EXACT if each.is_exact else 0.0)
            if each.id not in best or score > best[each.id].score:
                best[each.id] = each._replace(score=score)
    return sorted(best.values(), key=_score, reverse=True)


def _best(scored: Iterable[tuple[float, Id]], length: int) -> dict[Id, int]:
    """Returns the ids with the best scores above 0, with their ranks."""
    best = sorted((item for item in scored if item[0] > 0), key=itemgetter(0), reverse=True)
    return {id_: rank for rank, (_, id_) in enumerate(best[:length], start=1)}
