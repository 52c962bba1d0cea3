"""The arithmetic of back-off: the delay before each retry. What is retried, and how often, is the caller's decision."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that grow by a factor up to a maximum, with jitter.

    Example:
        >>> backoff = Backoff(first=0.1, maximum=15.0, jitter=0.0)
        >>> [backoff.delay(attempt) for attempt in (1, 2, 3, 20)]
        [0.1, 0.2, 0.4, 15.0]
    """

    first: float
    """The delay after the first failure, in seconds, before jitter."""
    maximum: float
    """No delay is longer than this many seconds."""
    factor: float = 2.0
    """The growth from one delay to the next."""
    jitter: float = 0.25
    """The share of each delay that is random: 0 is none; 1 draws from zero up to the whole delay."""

    def delay(self, attempt: int) -> float:
        """Returns the seconds to wait after the failed attempt with this number, counted from 1.

        With jitter, the delay is drawn uniformly from `[(1 - jitter) * delay, delay]`.
        """
        try:
            grown = min(self.maximum, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            grown = self.maximum
        return grown * (1.0 - self.jitter * random.random())  # noqa: S311  (jitter)

    def delays(self) -> Iterator[float]:
        """Yields the delays after the first, second and every later failed attempt, without end."""
        return (self.delay(attempt) for attempt in count(1))
