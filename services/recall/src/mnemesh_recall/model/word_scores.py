"""The scores of candidates by words: of their own texts, and of what their neighbours share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.scores import limited, share

from mnemesh_recall.model.candidates import Candidates

Floats = npt.NDArray[np.float64]
_LEAST: Final = 1e-6
"""The score of a match beyond the part of a long text that was read."""


def word_scores(candidates: Candidates, rarities: Mapping[str, float], constants: RankingConstants) -> Floats:
    """Returns the scores of candidates by words, in their order; 0 for one without a word.

    What a text receives is limited; see `ranking.words.limited`. A word that no text has has no limit: the search
    excludes its holders.

    Args:
        candidates: the candidates, with a column for each term of `rarities`.
        rarities: the terms of the query with their rarities; see `ranking.words.rarity`.
        constants: the constants of the ranking.
    """
    lengths = candidates.lengths[:, None]
    average = max(1.0, float(lengths.sum()) / max(1, len(lengths)))
    own = _weights(candidates.own, lengths, average, constants)
    largest = own.max(axis=0, initial=0.0)
    largest[largest == 0] = np.inf
    received = limited(_received(candidates, average, constants), own, largest)
    scores: Floats = (own + received) @ np.array(list(rarities.values()), np.float64)
    return np.where(candidates.has_word, np.maximum(scores, _LEAST), scores)


def _received(candidates: Candidates, average: float, constants: RankingConstants) -> Floats:
    """Returns the weights that texts receive from their neighbours, with a column for each term."""
    lengths = candidates.received_lengths.astype(np.float64)
    # Questions and the other words of the message before are parts of one text.
    lengths[:, :2] = lengths[:, :2].sum(axis=1, keepdims=True)
    shares = np.array(
        [share(-1, constants, is_asked=True), *(share(distance, constants) for distance in (-1, 1, -2, 2))]
    )
    weights = _weights(candidates.received, lengths[:, :, None], average, constants)
    total: Floats = (weights * shares[None, :, None]).sum(axis=1)
    return total


def _weights(counts: npt.NDArray[Any], lengths: Floats, average: float, constants: RankingConstants) -> Floats:
    """Returns the weights of terms from their counts, and the lengths of texts; see `ranking.words.saturation`."""
    least = constants.saturation * (1 - constants.length_share)
    slope = constants.saturation * constants.length_share / average
    found = np.zeros(counts.shape)
    np.divide(counts * (constants.saturation + 1), counts + (least + slope * lengths), out=found, where=counts > 0)
    return found
