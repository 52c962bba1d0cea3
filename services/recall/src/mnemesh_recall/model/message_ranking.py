"""The ranking of messages: scores by words and by similarity, factors, and their fusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.fusion import Candidate as Scored
from mnemesh_retrieval.ranking.fusion import Ranked, factor, fuse_scores
from mnemesh_retrieval.ranking.strands import shared_similarity
from mnemesh_retrieval.ranking.times import time_factor
from mnemesh_retrieval.time_expressions.resolver import TimeRange

from mnemesh_recall.model.word_scores import Candidate, word_scores

NO_SIMILARITIES: Final[Mapping[str, float]] = {}


def rank(
    candidates: Sequence[Candidate],
    rarities: Mapping[str, float],
    similarities: Mapping[str, float],
    similarity_weight: float,
    named_times: Sequence[TimeRange],
    constants: RankingConstants,
    *,
    depth: int,
    least_similarity: float = 0.0,
) -> list[Ranked[str]]:
    """Returns the candidates that match by words or by similarity, best first.

    Args:
        candidates: the candidates; of two with equal scores the earlier one comes first.
        rarities: the terms of the query with their rarities. Without terms, only similarities count.
        similarities: the similarities of the candidates and of their neighbours, as far as they are known.
        similarity_weight: the weight of similarities, where words weigh 1.
        named_times: the times that the query names.
        constants: the constants of the ranking.
        depth: the least length of the lists that are fused.
        least_similarity: a message without a word of the query is similar only above this.
    """
    scores = word_scores(candidates, rarities, constants)
    speakers = _named_speakers(candidates, rarities)
    factors = {
        (asks, is_named): factor(constants, ends_in_question=asks, is_named_speaker=is_named)
        for asks in (True, False)
        for is_named in (True, False)
    }
    scored = []
    for candidate, score in zip(candidates, scores, strict=True):
        own = factors[candidate.ends_in_question, candidate.about in speakers]
        if named_times:
            own *= time_factor(candidate.created_at, named_times, constants)
        similarity = _similarity(candidate, similarities, constants) if similarities else 0.0
        scored.append(Scored(candidate.id, score, similarity, own, candidate.is_exact))
    return fuse_scores(scored, similarity_weight, constants, depth=depth, least_similarity=least_similarity)


def ids_to_compare(candidates: Iterable[Candidate]) -> set[str]:
    """Returns the ids of candidates and of the messages beside them, whose similarities `rank` uses."""
    return {id_ for each in candidates for id_ in (each.id, each.before_id, each.after_id) if id_ is not None}


def asked_before(candidate: Candidate) -> str | None:
    """Returns the id of the message before a candidate if that asks a question."""
    return candidate.before_id if candidate.follows_question else None


def _named_speakers(candidates: Iterable[Candidate], rarities: Mapping[str, float]) -> frozenset[str]:
    """Returns the values of `about` whose speaker the query names."""
    by_about = {each.about: each for each in candidates}
    return frozenset(about for about, each in by_about.items() if not each.speaker.isdisjoint(rarities))


def _similarity(candidate: Candidate, similarities: Mapping[str, float], constants: RankingConstants) -> float:
    own = similarities.get(candidate.id)
    if own is None:
        return 0.0
    return shared_similarity(
        own,
        similarities.get(candidate.before_id or "", 0.0),
        similarities.get(candidate.after_id or "", 0.0),
        constants,
        before_asks=candidate.follows_question,
    )
