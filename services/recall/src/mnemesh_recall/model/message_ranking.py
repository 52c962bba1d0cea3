"""The ranking of messages: scores by words and by similarity, factors, and their fusion."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.scores import Candidate as Scored
from mnemesh_retrieval.ranking.scores import Ranked, factor, fuse_scores, shared_similarity, time_factor
from mnemesh_retrieval.time_expressions.resolver import TimeRange

from mnemesh_recall.model.candidates import SECTION, Candidates, Key, time_of
from mnemesh_recall.model.word_scores import word_scores

Floats = npt.NDArray[np.float64]
NO_SIMILARITIES: Final[Mapping[Key, float]] = {}


def rank(
    candidates: Candidates,
    rarities: Mapping[str, float],
    similarities: Mapping[Key, float],
    similarity_weight: float,
    named_times: Sequence[TimeRange],
    constants: RankingConstants,
    *,
    depth: int,
    least_similarity: float = 0.0,
) -> list[Ranked[Key]]:
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
    columns = (
        candidates.keys,
        word_scores(candidates, rarities, constants).tolist(),
        _similarities(candidates, similarities, constants).tolist(),
        _factors(candidates, rarities, named_times, constants),
        candidates.is_exact.tolist(),
    )
    scored = map(Scored[Key]._make, zip(*columns, strict=True))
    return fuse_scores(scored, similarity_weight, constants, depth=depth, least_similarity=least_similarity)


def keys_to_compare(candidates: Candidates) -> set[Key]:
    """Returns the candidates and the messages beside them, whose similarities `rank` uses."""
    return {*candidates.keys, *candidates.before, *candidates.after} - {b""}


def speaker_words(candidates: Candidates) -> frozenset[str]:
    """Returns the words of the names of the speakers of candidates."""
    return frozenset(itertools.chain.from_iterable(map(_speaker, set(candidates.abouts))))


def asked_before(candidates: Candidates) -> dict[Key, Key]:
    """Returns for each candidate that follows a question the message with it."""
    follow = candidates.follow_questions.tolist()
    columns = zip(candidates.keys, candidates.before, follow, strict=True)
    return {key: before for key, before, is_after in columns if is_after and before}


def _similarities(candidates: Candidates, known: Mapping[Key, float], constants: RankingConstants) -> Floats:
    """Returns similarities with the shares of neighbours; see `strands.shared_similarity`. 0 if the own is unknown."""
    if not known:
        return np.zeros(len(candidates))
    own = np.array([known.get(key, np.nan) for key in candidates.keys], np.float64)
    before, after = (
        np.array([known.get(key, 0.0) for key in keys], np.float64) for keys in (candidates.before, candidates.after)
    )
    return np.nan_to_num(shared_similarity(own, before, after, constants, before_asks=candidates.follow_questions))


def _factors(
    candidates: Candidates, rarities: Mapping[str, float], named_times: Sequence[TimeRange], constants: RankingConstants
) -> list[float]:
    known = {
        (asks, is_named): factor(constants, ends_in_question=asks, is_named_speaker=is_named)
        for asks in (True, False)
        for is_named in (True, False)
    }
    speakers = {about: not rarities.keys().isdisjoint(_speaker(about)) for about in set(candidates.abouts)}
    asks = candidates.asks.tolist()
    found = [known[asking, speakers[about]] for asking, about in zip(asks, candidates.abouts, strict=True)]
    if named_times:
        times = (time_factor(time_of(at), named_times, constants) for at in candidates.times.tolist())
        found = [own * of_time for own, of_time in zip(found, times, strict=True)]
    return found


def _speaker(about: str) -> Sequence[str]:
    """Returns the words of the speaker's name."""
    return about.partition(SECTION)[0].split()
