"""Neighbours of texts at positions of a strand, such as a dialogue or a file, and what they lend: as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.words import REACH, share

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
NONE: Final = -1
"""The row of a neighbour that does not exist."""
_SECONDS_PER_HOUR: Final = 3600.0


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
    ) -> Strands:
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
