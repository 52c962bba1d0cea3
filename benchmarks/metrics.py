"""Scores of a search with questions whose evidence is known, with confidence intervals."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

DEPTHS: Final = (1, 5, 10)
_Z: Final = 1.959964
"""The quantile of the normal distribution for intervals of 95 %."""
_SAMPLES: Final = 2_000
_SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    count: int
    """The number of questions."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a search for one question."""

    dialogue: str
    question: str
    category: str
    ranks: tuple[int | None, ...]
    """The 1-based rank of each piece of evidence, None if it was not among the hits. Never empty."""

    def any_at(self, depth: int) -> bool:
        """Returns whether a piece of evidence is among the first `depth` hits."""
        return any(rank is not None and rank <= depth for rank in self.ranks)

    def all_at(self, depth: int) -> bool:
        """Returns whether all evidence is among the first `depth` hits."""
        return all(rank is not None and rank <= depth for rank in self.ranks)

    @property
    def reciprocal_rank(self) -> float:
        """1 / the rank of the best evidence; 0 if none was found."""
        return max((1 / rank for rank in self.ranks if rank is not None), default=0.0)


def outcome(dialogue: str, question: str, category: str, hits: Sequence[str], evidence: Collection[str]) -> Outcome:
    """Compares hits, best first, with the evidence of a question. Repeated hits count once.

    Raises:
        ValueError: the question has no evidence.
    """
    if not evidence:
        raise ValueError(f"Question {question} of dialogue {dialogue} has no evidence.")
    places: dict[str, int] = {}
    for hit in hits:
        places.setdefault(hit, len(places) + 1)
    return Outcome(dialogue, question, category, tuple(places.get(each) for each in sorted(evidence)))


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a set of outcomes."""

    any_at: dict[int, Estimate]
    all_at: dict[int, Estimate]
    reciprocal_rank: Estimate


def scores(outcomes: Sequence[Outcome], depths: Iterable[int] = DEPTHS) -> Scores:
    """Returns shares of questions with some and with all evidence among the first hits, and the mean reciprocal rank.

    Shares have Wilson intervals; the mean has a bootstrap interval.
    """
    found = list(depths)
    return Scores(
        any_at={depth: share(outcome.any_at(depth) for outcome in outcomes) for depth in found},
        all_at={depth: share(outcome.all_at(depth) for outcome in outcomes) for depth in found},
        reciprocal_rank=mean([outcome.reciprocal_rank for outcome in outcomes]),
    )


def by_category(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Groups outcomes by category, in alphabetical order."""
    groups: dict[str, list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault(each.category, []).append(each)
    return dict(sorted(groups.items()))


def share(successes: Iterable[bool]) -> Estimate:
    """Returns a share with its Wilson interval. Without questions it is 0 within [0, 1]."""
    marks = list(successes)
    count = len(marks)
    if not count:
        return Estimate(0.0, 0.0, 1.0, 0)
    part = sum(marks) / count
    divisor = 1 + _Z**2 / count
    centre = (part + _Z**2 / (2 * count)) / divisor
    half = _Z / divisor * math.sqrt(part * (1 - part) / count + _Z**2 / (4 * count**2))
    return Estimate(part, max(0.0, centre - half), min(1.0, centre + half), count)


def mean(values: Sequence[float]) -> Estimate:
    """Returns a mean with its bootstrap interval over the values. Without values it is 0 within [0, 0]."""
    if not values:
        return Estimate(0.0, 0.0, 0.0, 0)
    numbers = np.asarray(values, dtype=np.float64)
    low, high = np.quantile(_resampled_means(numbers), (0.025, 0.975))
    return Estimate(float(numbers.mean()), float(low), float(high), len(values))


def _resampled_means(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    chance = np.random.default_rng(_SEED)
    # In blocks, because all samples of a large dataset at once would take much memory.
    blocks = (chance.integers(0, len(numbers), (100, len(numbers))) for _ in range(_SAMPLES // 100))
    return np.concatenate([numbers[block].mean(axis=1) for block in blocks])
