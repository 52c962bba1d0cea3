"""The scores of texts for a query: by words, by times, by what neighbours lend, and the fusion of all."""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import takewhile
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_retrieval.words.analysis import normal_form
from mnemesh_retrieval.words.sparse import LENGTH_SHARE, SATURATION, split_speaker

# A sentence ends at a line break, at marks before a space, a closing quote or bracket, or the end, and at wide marks.
_SENTENCE: Final = re.compile(r"(?:(?<![.!?…])[.!?…]++(?=[\s\"'”’»)\]*]|$)|[。！？؟]+|\n)+")
_QUESTION_MARK: Final = re.compile("[?？؟]")
_WORD_CHARACTER: Final = re.compile(r"\w")
_GAP: Final = re.compile(r"[\W_]+")
AnyFloats = npt.NDArray[np.floating[Any]]
REACH: Final = 2
"""The largest distance of neighbours that share words."""
RECEIVED_PART: Final = 1 - 1e-6
"""The part of the difference to the best text with a word that a text can receive from its neighbours. Without it, both
could have the same score, and rounding would decide which is first."""
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
NONE: Final = -1
"""The row of a neighbour that does not exist."""
_SECONDS_PER_HOUR: Final = 3600.0
Id = TypeVar("Id", bound=Hashable)
EXACT: Final = 10.0
"""Added to the score of a text that equals the query. No other part of a score reaches it."""
_score: Final = itemgetter(1)
"""The score of a Ranked. A reverse sort keeps the order of equal scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingConstants:
    """The constants of the ranking. The defaults were fitted on dialogues of two people; see docs/retrieval.md.

    A share is the part of a word's weight, or of a similarity, that a text receives from a neighbour. Shares are
    between 0 and 1, factors above 0.
    """

    saturation: float = SATURATION
    """BM25's k1: how slowly further occurrences of a word stop counting."""
    length_share: float = LENGTH_SHARE
    """BM25's b. Turns of a dialogue are short: with 0.75, which suits pages, the shortest would win."""
    question_share: float = 1.0
    """The share that a text receives of the words in question sentences of the text before it."""
    before_share: float = 0.5
    """The share that a text receives of the other words of the text before it."""
    second_before_share: float = 0.3
    """The share that a text receives of the words of the text at distance two before it."""
    after_share: float = 0.4
    """The share that a text receives of the words of the text after it."""
    second_after_share: float = 0.2
    """The share that a text receives of the words of the text at distance two after it."""
    neighbour_hours: float = 6.0
    """The longest time between two neighbours, in hours."""
    question_factor: float = 0.85
    """The factor of a text that ends in a question."""
    speaker_factor: float = 1.25
    """The factor of a text whose speaker the query names."""
    word_candidates: int = 100
    """The number of best texts by words that are fused."""
    similarity_candidates: int = 50
    """The number of best texts by similarity that are fused."""
    similarity_after_question: float = 0.6
    """The share that a text receives of the similarity of the text before it, if that asks a question."""
    similarity_before: float = 0.3
    """The share that a text receives of the similarity of the text before it otherwise."""
    similarity_after: float = 0.15
    """The share that a text receives of the similarity of the text after it."""
    time_factor: float = 1.3
    """The factor of a text from a day or a range of time that the query names."""
    time_fade_days: float = 7.0
    """The days after such a range over which the factor falls to 1."""


DEFAULTS: Final = RankingConstants()


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text without the name of its speaker, in parts."""

    speaker: str
    """The name at the beginning of the text, as in "Ada Lovelace: I wrote a program."; "" without one."""
    text: str
    questions: str
    """The question sentences, separated by line breaks."""
    statements: str
    """The other sentences, separated by line breaks."""
    ends_in_question: bool

    @property
    def asks(self) -> bool:
        """Whether the text has a question sentence."""
        return bool(self.questions)


def utterance(text: str, *, is_folded: bool = False) -> Utterance:
    """Returns the parts of a text. See `split_speaker` for folded texts."""
    speaker, spoken = split_speaker(text, is_folded=is_folded)
    if not _QUESTION_MARK.search(spoken):
        return Utterance(speaker, spoken, "", spoken, False)
    questions: list[str] = []
    statements: list[str] = []
    start = 0
    for mark in _SENTENCE.finditer(spoken):
        sentences = questions if _QUESTION_MARK.search(mark[0]) else statements
        sentences.append(spoken[start : mark.end()].strip())
        start = mark.end()
    statements.append(spoken[start:].strip())
    marks_at_the_end = takewhile(lambda character: _WORD_CHARACTER.match(character) is None, reversed(spoken))
    return Utterance(
        speaker,
        spoken,
        "\n".join(filter(None, questions)),
        "\n".join(filter(None, statements)),
        any(_QUESTION_MARK.match(mark) for mark in marks_at_the_end),
    )


def normalized(text: str) -> str:
    """Returns the letters and digits of a text in lower case, with single spaces between words.

    The name of the speaker is left out. A text without letters and digits is returned without spaces around it.
    """
    folded = normal_form("NFKC", text).casefold()
    spoken = split_speaker(folded, is_folded=True)[1].strip()
    return _GAP.sub(" ", spoken).strip() or spoken


def fingerprint(text: str) -> str:
    """Returns 16 hexadecimal digits that are the same for texts that are equal when normalized."""
    return blake2b(normalized(text).encode(errors="replace"), digest_size=8).hexdigest()


def rarity(holders: int, size: int) -> float:
    """Returns BM25's inverse document frequency of a word in `holders` of `size` texts."""
    return math.log(1 + (max(size, holders) - holders + 0.5) / (holders + 0.5))


def saturation(average_length: float, constants: RankingConstants) -> Callable[[int, float], float]:
    """Returns the function that computes the weight of a word in a text from its count and the length of the text.

    The count is at least 1; lengths are in any unit, that of `average_length`.
    """
    largest = constants.saturation + 1
    least = constants.saturation * (1 - constants.length_share)
    slope = constants.saturation * constants.length_share / average_length

    def weight(count: int, length: float) -> float:
        return count * largest / (count + least + slope * length)

    return weight


def share(distance: int, constants: RankingConstants, *, is_asked: bool = False) -> float:
    """Returns the share of a word's weight that a text receives from a neighbour; 0 beyond the reach.

    Args:
        distance: the place of the neighbour: -1 for the text before, 2 for the text after the next.
        constants: the constants of the ranking.
        is_asked: whether the word is in a question sentence of the neighbour.
    """
    match distance:
        case -1:
            return constants.question_share if is_asked else constants.before_share
        case -2:
            return constants.second_before_share
        case 1:
            return constants.after_share
        case 2:
            return constants.second_after_share
    return 0.0


def limited(received: AnyFloats, own: AnyFloats, largest: AnyFloats) -> AnyFloats:
    """Returns the weights that texts receive from their neighbours, with the limit of each word.

    A word weighs less than in the text where it weighs most: a text between two others with a word is not more about it
    than they are.

    Args:
        received: the weights that texts receive: any arrays that fit together, with an axis of texts and one of words.
        own: the weights of the words of the query in each text, the name of its speaker and its day.
        largest: the largest own weight of each word; infinite for a word without a limit.
    """
    weights: AnyFloats = np.minimum(received, RECEIVED_PART * (largest - own))
    return weights


def time_factor(created_at: datetime, named: Sequence[TimeRange], constants: RankingConstants) -> float:
    """Returns the factor of a text from a time: the largest of the named times; 1 if there are none.

    A text from a named time has the whole factor. After its end the factor falls to 1, in proportion to the time.
    """
    best = 1.0
    fade = timedelta(days=constants.time_fade_days)
    for each in named:
        is_after = each.end is not None and created_at >= each.end
        if not is_after and (each.start is None or each.start <= created_at):
            return max(best, constants.time_factor)
        if is_after and each.end is not None and (passed := created_at - each.end) < fade:
            best = max(best, 1 + (constants.time_factor - 1) * (1 - passed / fade))
    return best


@dataclass(frozen=True, slots=True)
class Strands:
    """The neighbours of texts, which are numbered by rows.

    Example:
        >>> strands = Strands.of(strands=[1, 1, 2], positions=[7, 8, 9], times=[0.0, 60.0, 60.0], constants=DEFAULTS)
        >>> strands.by_distance[-1]
        array([-1,  0, -1])
    """

    by_distance: Mapping[int, Rows]
    """The row of the neighbour at each distance, from -2 to 2 without 0; NONE if there is none."""

    @classmethod
    def of(
        cls,
        strands: Sequence[int],
        positions: Sequence[int],
        times: Sequence[float],
        constants: RankingConstants,
    ) -> "Strands":
        """Returns the neighbours of each text: those of its strand that are near in position and time.

        Args:
            strands: the strand of each text.
            positions: the position of each text, unique in its strand.
            times: the time of each text in seconds.
            constants: the constants of the ranking.
        """
        strand, position = np.asarray(strands, np.int64), np.asarray(positions, np.int64)
        seconds = np.asarray(times, np.float64)
        order = np.lexsort((position, strand))
        found = {sign * far: np.full(len(order), NONE, np.int64) for far in range(1, REACH + 1) for sign in (-1, 1)}
        for step in range(1, REACH + 1):
            before, after = order[:-step], order[step:]
            distance = position[after] - position[before]
            is_near = (strand[before] == strand[after]) & (
                np.abs(seconds[after] - seconds[before]) <= constants.neighbour_hours * _SECONDS_PER_HOUR
            )
            for far in range(step, REACH + 1):
                pairs = is_near & (distance == far)
                found[-far][after[pairs]] = before[pairs]
                found[far][before[pairs]] = after[pairs]
        return cls(found)

    def received_words(self, lent: Floats, asked: Bools, constants: RankingConstants) -> Floats:
        """Returns the weights of words that texts receive from their neighbours, with a row for each text.

        Args:
            lent: the weights of words in each text, without the name of its speaker: a row for each text, a column for
                each word.
            asked: whether the word is in a question sentence of the text.
            constants: the constants of the ranking.
        """
        received = np.zeros_like(lent)
        for distance, rows in self.by_distance.items():
            parts = share(distance, constants) * lent
            if asked.any():
                parts = np.where(asked, share(distance, constants, is_asked=True) * lent, parts)
            received += _of_neighbours(parts, rows)
        return received

    def shared_similarities(self, similarities: Floats, asks: Bools, constants: RankingConstants) -> Floats:
        """Returns the similarities of texts with the shares of their neighbours; see `shared_similarity`.

        Args:
            similarities: the cosine of each text; 0 if unknown.
            asks: whether each text has a question sentence.
            constants: the constants of the ranking.
        """
        before, after = self.by_distance[-1], self.by_distance[1]
        return shared_similarity(
            similarities,
            _of_neighbours(similarities, before),
            _of_neighbours(similarities, after),
            constants,
            before_asks=_of_neighbours(asks, before),
        )

    def largest_nearby(self, values: Floats) -> Floats:
        """Returns the largest value of each text and the texts before and after it; values are at least 0."""
        before, after = (_of_neighbours(values, self.by_distance[step]) for step in (-1, 1))
        largest: Floats = np.maximum(values, np.maximum(before, after))
        return largest


def shared_similarity(
    own: Floats, before: Floats, after: Floats, constants: RankingConstants, *, before_asks: Bools
) -> Floats:
    """Returns the similarities of texts with the shares of the texts before and after them. All are cosines.

    A negative similarity of a neighbour counts as 0.
    """
    part = np.where(before_asks, constants.similarity_after_question, constants.similarity_before)
    total: Floats = own + part * np.maximum(0.0, before) + constants.similarity_after * np.maximum(0.0, after)
    return total


def _of_neighbours(values: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Returns the values of the neighbours at these rows; zeros where there is none."""
    found = values[rows]
    found[rows == NONE] = 0
    return found


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
