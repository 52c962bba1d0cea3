"""The score of texts by words: BM25 over their own words and a share of those of their neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.ranking.constants import RankingConstants

Floats = npt.NDArray[np.floating[Any]]
REACH: Final = 2
"""The largest distance of neighbours that share words."""
RECEIVED_PART: Final = 1 - 1e-6
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


def limited(received: Floats, own: Floats, largest: Floats) -> Floats:
    """Returns the weights that texts receive from their neighbours, with the limit of each word.

    A word weighs less than in the text where it weighs most: a text between two others with a word is not more about it
    than they are.

    Args:
        received: the weights that texts receive: any arrays that fit together, with an axis of texts and one of words.
        own: the weights of the words of the query in each text, the name of its speaker and its day.
        largest: the largest own weight of each word; infinite for a word without a limit.
    """
    weights: Floats = np.minimum(received, RECEIVED_PART * (largest - own))
    return weights
