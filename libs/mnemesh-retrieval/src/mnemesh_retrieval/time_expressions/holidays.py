"""Holidays that English questions name as times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from mnemesh_retrieval.time_expressions.calendar import DAY, Span, days_of, local_day


def _thanksgiving(year: int) -> datetime:
    """Returns the fourth Thursday of November, as in the United States."""
    first = local_day(year, 11, 1)
    return first + ((3 - first.weekday()) % 7 + 21) * DAY


def _easter(year: int) -> datetime:
    """Returns Easter Sunday of the Gregorian calendar, by the algorithm of Meeus, Jones and Butcher."""
    century, rest = divmod(year, 100)
    leaps, century_rest = divmod(century, 4)
    correction = (century - (century + 8) // 25 + 1) // 3
    moon = (19 * (year % 19) + century - leaps - correction + 15) % 30
    weekday = (32 + 2 * century_rest + 2 * (rest // 4) - moon - rest % 4) % 7
    shift = (year % 19 + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * shift + 114, 31)
    return local_day(year, month, day + 1)


def _from(holiday: Callable[[int], datetime], first: int, days: int) -> Callable[[int], Span]:
    return lambda year: (holiday(year) + first * DAY, holiday(year) + (first + days) * DAY)


def _new_year(year: int) -> Span:
    return local_day(year - 1, 12, 31), local_day(year, 1, 2)


HOLIDAYS: Final = {
    ("christmas", "eve"): days_of(12, 24, 24),
    ("christmas", "day"): days_of(12, 25, 25),
    ("christmas",): days_of(12, 24, 26),
    ("boxing", "day"): days_of(12, 26, 26),
    ("new", "year", "eve"): days_of(12, 31, 31),
    ("new", "year", "day"): days_of(1, 1, 1),
    ("new", "year"): _new_year,
    ("valentine", "day"): days_of(2, 14, 14),
    ("halloween",): days_of(10, 31, 31),
    ("thanksgiving",): _from(_thanksgiving, 0, 1),
    ("black", "friday"): _from(_thanksgiving, 1, 1),
    ("good", "friday"): _from(_easter, -2, 1),
    ("easter", "sunday"): _from(_easter, 0, 1),
    ("easter", "monday"): _from(_easter, 1, 1),
    ("easter",): _from(_easter, -2, 4),
}
"""The words of holidays without a possessive s, and their spans of a year; longer names first."""
