"""Ranks the turns of a dialogue for a question with given constants, as a search does, on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.fusion import EXACT
from mnemesh_retrieval.ranking.words import limited, share
from mnemesh_retrieval.tuning.analysis import DISTANCES, AnalysedQuestion, Floats, Marks
from mnemesh_retrieval.tuning.metrics import Outcome

A = TypeVar("A", bound=npt.NDArray[Any])


@dataclass(frozen=True, slots=True)
class Trial:
    """The constants of a search, and what depends on its embedder."""

    constants: RankingConstants
    similarity_weight: float
    least_similarity: float = 0.0
    """That of the embedder: a turn without a word of the question is similar only above it."""


def tried(question: AnalysedQuestion, trial: Trial) -> Outcome:
    """Returns where a search with these constants ranks the evidence of a question."""
    order = ranking(question, trial)
    places = {position: rank for rank, position in enumerate(order, start=1)}
    ranks = tuple(places.get(position) for position in question.evidence)
    return Outcome(question.dialogue.id, question.id, question.category, ranks)


def ranking(question: AnalysedQuestion, trial: Trial) -> list[int]:
    """Returns the positions of the turns that are found, best first; of equal ones the newest first.

    It is the ranking of `ranking.fusion.fuse_scores` over all turns.
    """
    constants, weight = trial.constants, trial.similarity_weight
    factors = _factors(question, constants)
    by_words = _word_scores(question, constants)
    score, listed = np.zeros_like(by_words), question.exact.copy()
    if np.max(by_words, initial=0.0) > 0:
        score += by_words / np.max(by_words)
        listed |= _best(by_words * factors, constants.word_candidates)
    if weight:
        by_similarity = _similarity(question, constants)
        if np.max(by_similarity, initial=0.0) > 0:
            score += weight * np.maximum(0.0, by_similarity) / np.max(by_similarity)
            is_similar = (by_words > 0) | (by_similarity > trial.least_similarity)
            listed |= _best(by_similarity * factors * is_similar, constants.similarity_candidates)
    score = score * factors + EXACT * question.exact
    newest_first = np.arange(len(score))[::-1]
    order = newest_first[np.argsort(-score[::-1], kind="stable")]
    return [int(position) for position in order if listed[position]]


def _best(scores: Floats, length: int) -> Marks:
    """Marks the `length` best scores above 0, of equal ones the newest."""
    order = np.arange(len(scores))[::-1][np.argsort(-scores[::-1], kind="stable")][:length]
    marks = np.zeros(len(scores), dtype=np.bool_)
    marks[order] = True
    return marks & (scores > 0)


def _factors(question: AnalysedQuestion, constants: RankingConstants) -> Floats:
    factors = np.where(question.dialogue.ends_in_question, constants.question_factor, 1.0)
    factors = factors * np.where(question.names_speaker, constants.speaker_factor, 1.0)
    timed: Floats = (factors * (1 + (constants.time_factor - 1) * question.time_parts)).astype(np.float32)
    return timed


def _word_scores(question: AnalysedQuestion, constants: RankingConstants) -> Floats:
    own, lent = (_saturated(counts, question, constants) for counts in (question.own, question.lent))
    if not len(own):
        return np.zeros(len(question.dialogue.ids), dtype=np.float32)
    received = np.zeros_like(own)
    for distance in DISTANCES:
        part = np.where(
            _shifted(question.asked, distance),
            share(distance, constants, is_asked=True),
            share(distance, constants),
        )
        received += part * _shifted(lent, distance) * question.dialogue.has_neighbour[distance]
    received = limited(received, own, own.max(axis=1, keepdims=True))
    scores: Floats = (question.rarities @ (own + received)).astype(np.float32)
    return scores


def _saturated(counts: Floats, question: AnalysedQuestion, constants: RankingConstants) -> Floats:
    lengths = question.dialogue.relative_lengths
    damping = constants.saturation * (1 - constants.length_share + constants.length_share * lengths)
    return np.where(counts > 0, counts * (constants.saturation + 1) / np.maximum(counts + damping, 1e-9), 0.0).astype(
        np.float32
    )


def _similarity(question: AnalysedQuestion, constants: RankingConstants) -> Floats:
    own, dialogue = question.similarities, question.dialogue
    lent = np.maximum(0.0, own)
    after_question = _shifted(dialogue.asks, -1)
    before = np.where(after_question, constants.similarity_after_question, constants.similarity_before)
    found: Floats = (
        own
        + before * _shifted(lent, -1) * dialogue.has_neighbour[-1]
        + constants.similarity_after * _shifted(lent, 1) * dialogue.has_neighbour[1]
    ).astype(np.float32)
    return found


def _shifted(values: A, distance: int) -> A:
    """Returns for each column the value of the column at this distance. Columns without one wrap; mask them."""
    shifted: A = np.roll(values, -distance, axis=-1)
    return shifted
