"""The score of texts by words: BM25 over their own words and a share of those of their neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, TypeVar

from mnemesh_retrieval.ranking.constants import RankingConstants

Word = TypeVar("Word", bound=Hashable)
REACH: Final = 2
"""The largest distance of neighbours that share words."""
RECEIVED_PART: Final = 1 - 1e-9
"""The part of the difference to the best text with a word that a text can receive from its neighbours. Without it, both
could have the same score, and rounding would decide which is first."""


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


def largest_weights(texts: Iterable[Mapping[Word, float]]) -> dict[Word, float]:
    """Returns the largest weight of each word among texts."""
    largest: dict[Word, float] = {}
    for words in texts:
        for word, weight in words.items():
            if weight > largest.get(word, 0.0):
                largest[word] = weight
    return largest


def word_score(
    own: Mapping[Word, float],
    received: Mapping[Word, float],
    largest: Mapping[Word, float],
    rarities: Mapping[Word, float],
) -> float:
    """Returns the score of a text by words.

    A word weighs less than in the text where it weighs most: a text between two others with a word is not more about
    it than they are.

    Args:
        own: the weights of the words of the query in the text, the name of its speaker and its day.
        received: the shares of its neighbours.
        largest: the largest own weight of each word; see `largest_weights`. A word that no text has, because the search
            excludes its holders, has no limit.
        rarities: the rarity of each word; see `rarity`.
    """
    score = 0.0
    for word, weight in own.items():
        score += rarities[word] * weight
    for word, weight in received.items():
        missing = RECEIVED_PART * (largest[word] - own.get(word, 0.0)) if word in largest else weight
        score += rarities[word] * (weight if weight < missing else missing)
    return score
