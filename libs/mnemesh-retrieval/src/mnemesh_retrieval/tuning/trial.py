"""Dialogues as arrays, on which many constants can be tried, and trials: the turns ranked for a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.embedder import Embedder, averages_words
from mnemesh_retrieval.ranking.constants import DEFAULTS, RankingConstants
from mnemesh_retrieval.ranking.scores import EXACT, REACH, limited, rarity, share, time_factor
from mnemesh_retrieval.ranking.texts import normalized, utterance
from mnemesh_retrieval.time_expressions.resolver import resolve
from mnemesh_retrieval.tuning.dialogues import Dialogue, Question, Turn
from mnemesh_retrieval.tuning.metrics import Outcome
from mnemesh_retrieval.words.analysis import indexed, terms, text_language
from mnemesh_retrieval.words.languages import DEFAULT
from mnemesh_retrieval.words.speakers import name_words, without_names

Floats = npt.NDArray[np.float32]
Marks = npt.NDArray[np.bool_]
DISTANCES: Final = tuple(sign * far for far in range(1, REACH + 1) for sign in (-1, 1))
EMBEDDED_CHARACTERS: Final = 2_000
_BATCH: Final = 256


@dataclass(frozen=True, slots=True)
class AnalysedDialogue:
    """What the turns of a dialogue have for every question, oldest first; all arrays have one entry per turn."""

    id: str
    ids: tuple[str, ...]
    sessions: tuple[int, ...]
    relative_lengths: Floats
    asks: Marks
    ends_in_question: Marks
    has_neighbour: dict[int, Marks]
    """By distance: whether the turn has a neighbour there that shares words with it."""


@dataclass(frozen=True, slots=True)
class AnalysedQuestion:
    """What the turns have for one question. Rows are the terms of the question, columns the turns."""

    dialogue: AnalysedDialogue
    id: str
    category: str
    evidence: tuple[int, ...]
    """Positions of turns."""
    own: Floats
    """Occurrences of the terms in turns, the names of their speakers and their days."""
    lent: Floats
    """Occurrences of the terms in turns alone."""
    asked: Marks
    """Whether the term is in a question sentence of the turn."""
    rarities: Floats
    similarities: Floats
    names_speaker: Marks
    time_parts: Floats
    """The part of the factor of time that a turn gets: 1 in a named time, then falling to 0."""
    exact: Marks

    @property
    def session(self) -> int:
        """The session of the first evidence."""
        return self.dialogue.sessions[self.evidence[0]]


async def analysed(dialogues: Sequence[Dialogue], embedder: Embedder | None) -> list[AnalysedQuestion]:
    """Analyses the dialogues for all questions that have evidence. Without an embedder, all similarities are 0.

    Raises:
        EmbedderError: the embedder failed.
    """
    found: list[AnalysedQuestion] = []
    for dialogue in dialogues:
        questions, turns = dialogue.questions_with_evidence(), list(dialogue.turns())
        if not questions:
            continue
        texts = [f"{turn.speaker}: {turn.text_with_picture}" if turn.speaker else turn.text for turn in turns]
        asked = [question.text for question in questions]
        if embedder is not None and averages_words(embedder):
            names = frozenset[str]().union(*(name_words(speaker) for speaker in {turn.speaker for turn in turns}))
            asked = [without_names(text, names) for text in asked]
        similarities = await _similarities(embedder, asked, texts)
        of_turns = _Turns(dialogue, turns)
        found += [of_turns.question(each, row) for each, row in zip(questions, similarities, strict=True)]
    return found


class _Turns:
    """The analysed turns of one dialogue."""

    def __init__(self, dialogue: Dialogue, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._positions = {turn.id: position for position, turn in enumerate(turns)}
        parts = [utterance(turn.text_with_picture) for turn in turns]
        self._languages = sorted({text_language(turn.text_with_picture) for turn in turns} - {DEFAULT})
        self._bodies = [f" {indexed(turn.text_with_picture)} " for turn in turns]
        self._questions = [
            f" {indexed(each.questions, language=text_language(turn.text_with_picture))} "
            for turn, each in zip(turns, parts, strict=True)
        ]
        speakers = [indexed(turn.speaker, language=DEFAULT) for turn in turns]
        days = [indexed(f"{turn.said_at.day} {turn.said_at:%B %Y}", language=DEFAULT) for turn in turns]
        self._about = [f" {speaker} {day} " for speaker, day in zip(speakers, days, strict=True)]
        self._speakers = [frozenset(speaker.split()) for speaker in speakers]
        self._texts = [normalized(turn.text_with_picture) for turn in turns]
        lengths = np.array([body.count(" ") - 1 for body in self._bodies], dtype=np.float32)
        self._dialogue = AnalysedDialogue(
            id=dialogue.id,
            ids=tuple(turn.id for turn in turns),
            sessions=tuple(number for number, session in enumerate(dialogue.sessions) for _ in session.turns),
            relative_lengths=lengths / max(1.0, float(lengths.mean())),
            asks=np.array([each.asks for each in parts]),
            ends_in_question=np.array([each.ends_in_question for each in parts]),
            has_neighbour={distance: _has_neighbour(turns, distance, DEFAULTS) for distance in DISTANCES},
        )

    def question(self, question: Question, similarities: Floats) -> AnalysedQuestion:
        """Returns what the turns have for a question."""
        words = terms(question.text, self._languages)
        lent = _counts(self._bodies, tuple(words))
        own = lent + _counts(self._about, tuple(words))
        times = resolve(question.text, UTC, question.asked_at)
        most = RankingConstants(time_factor=2.0)
        text = normalized(question.text)
        return AnalysedQuestion(
            dialogue=self._dialogue,
            id=question.id,
            category=question.category,
            evidence=tuple(sorted(self._positions[id_] for id_ in question.evidence)),
            own=own,
            lent=lent,
            asked=_counts(self._questions, tuple(words)) > 0,
            rarities=_rarities(own, words),
            similarities=similarities,
            names_speaker=np.array([not each.isdisjoint(words) for each in self._speakers]),
            time_parts=np.array([time_factor(each.said_at, list(times), most) - 1 for each in self._turns], np.float32),
            exact=np.array([each == text for each in self._texts]),
        )


def _counts(texts: Sequence[str], words: Sequence[str]) -> Floats:
    """Returns how often each word or phrase (rows) is in each text (columns), which has spaces around each word."""
    found = [[text.count(f" {word} ") if word in text else 0 for text in texts] for word in words]
    return np.array(found, dtype=np.float32).reshape(len(words), len(texts))


def _rarities(own: Floats, words: Mapping[str, str]) -> Floats:
    """Returns the rarity of each term: that of its word, whose terms of all languages count together."""
    holders: Counter[str] = Counter()
    for word, row in zip(words.values(), own, strict=True):
        holders[word] += int((row > 0).sum())
    return np.array([rarity(holders[word], own.shape[1]) for word in words.values()], dtype=np.float32)


def _has_neighbour(turns: Sequence[Turn], distance: int, constants: RankingConstants) -> Marks:
    longest = timedelta(hours=constants.neighbour_hours)
    return np.array(
        [
            0 <= place + distance < len(turns) and abs(turns[place + distance].said_at - turn.said_at) <= longest
            for place, turn in enumerate(turns)
        ]
    )


async def _similarities(embedder: Embedder | None, questions: Sequence[str], texts: Sequence[str]) -> Floats:
    """Returns the cosines: one row per question, one column per text."""
    if embedder is None:
        return np.zeros((len(questions), len(texts)), dtype=np.float32)
    return await _embedded(embedder, questions) @ (await _embedded(embedder, texts)).T


async def _embedded(embedder: Embedder, texts: Sequence[str]) -> Floats:
    vectors = []
    rest = iter(texts)
    while batch := [text[:EMBEDDED_CHARACTERS] for text in islice(rest, _BATCH)]:
        vectors += await embedder.embed(batch)
    return np.stack(vectors)


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
