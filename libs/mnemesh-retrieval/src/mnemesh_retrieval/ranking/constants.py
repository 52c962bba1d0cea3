"""The constants of the ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mnemesh_retrieval.words.sparse import LENGTH_SHARE, SATURATION


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
