"""The factor of texts from the times that a query names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.time_expressions.resolver import TimeRange


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
