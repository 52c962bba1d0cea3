"""Spans of the local calendar: units, periods that recur every week, month or year, and holidays."""

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from typing import Final

Span = tuple[datetime, datetime]
Recurring = Callable[[datetime], Sequence[Span]]
"""A recurring period: its occurrences around a time, in order."""

DAY: Final = timedelta(days=1)
WEEK: Final = timedelta(days=7)
_YEARS_AROUND: Final = range(-4, 3)
"""Enough for 29 February."""
_WEEKS_AROUND: Final = range(-3, 4)
_MONTHS_AROUND: Final = range(-3, 4)


def local_day(year: int, month: int, day: int) -> datetime:
    """Returns the beginning of a day. Raises ValueError if the month does not have it."""
    return datetime.combine(date(year, month, day), time())


def day_of(moment: datetime) -> datetime:
    """Returns the beginning of the day of a moment."""
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def add_months(day: datetime, months: int) -> datetime:
    """Returns the same day of another month, or the last day of a shorter one."""
    first = _first_of_month(day.year, day.month + months)
    length = (_first_of_month(first.year, first.month + 1) - first).days
    return first.replace(day=min(day.day, length))


def unit_span(unit: str, day: datetime, shift: int = 0) -> Span:
    """Returns the day, week, month, quarter or year that contains a day, moved by `shift` units."""
    if unit == "day":
        return day + shift * DAY, day + (shift + 1) * DAY
    if unit == "week":
        monday = day - day.weekday() * DAY
        return monday + shift * WEEK, monday + (shift + 1) * WEEK
    months = {"month": 1, "quarter": 3, "year": 12}[unit]
    first = day.month - (day.month - 1) % months
    return (
        _first_of_month(day.year, first + shift * months),
        _first_of_month(day.year, first + (shift + 1) * months),
    )


def moved(day: datetime, unit: str, count: int) -> datetime:
    """Returns a day moved by `count` days, weeks, months, quarters, years or decades."""
    days = {"day": 1, "week": 7, "fortnight": 14}.get(unit)
    if days is not None:
        return day + count * days * DAY
    return add_months(day, count * {"month": 1, "quarter": 3, "year": 12, "decade": 120}[unit])


def around(day: datetime, unit: str, first: int, last: int) -> Span:
    """Returns the span of `first` to `last` units after a day, each unit centred: "two weeks ago" is -2, -2."""
    half = {"day": 0, "week": 3, "fortnight": 6, "month": 15, "quarter": 45, "year": 182, "decade": 1826}[unit]
    return moved(day, unit, first) - half * DAY, moved(day, unit, last) + (half + 1) * DAY


def part(span: Span, index: int, count: int) -> Span:
    """Returns one of `count` equal parts of a span, in whole days. `index` starts at 0."""
    start, end = span
    days = (end - start).days
    return start + days * index // count * DAY, start + days * (index + 1) // count * DAY


def yearly(of_year: Callable[[int], Span]) -> Recurring:
    """Returns a period that recurs every year."""

    def occurrences(moment: datetime) -> Sequence[Span]:
        spans = []
        for shift in _YEARS_AROUND:
            try:
                spans.append(of_year(moment.year + shift))
            except ValueError:
                continue  # 29 February, or a year outside of the calendar
        return spans

    return occurrences


def weekly(first_weekday: int, days: int = 1) -> Recurring:
    """Returns a weekday, or several from one on."""

    def occurrences(moment: datetime) -> Sequence[Span]:
        monday = unit_span("week", day_of(moment))[0]
        starts = [monday + shift * WEEK + first_weekday * DAY for shift in _WEEKS_AROUND]
        return [(start, start + days * DAY) for start in starts]

    return occurrences


def monthly(day: int) -> Recurring:
    """Returns a day of every month that has it."""

    def occurrences(moment: datetime) -> Sequence[Span]:
        firsts = [_first_of_month(moment.year, moment.month + shift) for shift in _MONTHS_AROUND]
        starts = [first + (day - 1) * DAY for first in firsts if (first + (day - 1) * DAY).month == first.month]
        return [(start, start + DAY) for start in starts]

    return occurrences


def latest(period: Recurring, now: datetime) -> Span | None:
    """Returns the latest occurrence that has begun."""
    return max((span for span in period(now) if span[0] <= now), default=None)


def latest_over(period: Recurring, now: datetime) -> Span | None:
    """Returns the latest occurrence that was over when the day began."""
    today = day_of(now)
    return max((span for span in period(now) if span[1] <= today), default=None)


def following(period: Recurring, after: datetime) -> Span | None:
    """Returns the first occurrence that begins later."""
    return min((span for span in period(after) if span[0] > after), default=None)


def nearest(period: Recurring, now: datetime) -> Span | None:
    """Returns the occurrence that contains a time, or the one with the smallest distance to it."""

    def distance(span: Span) -> timedelta:
        return max(span[0] - now, now - span[1], timedelta())

    return min(period(now), key=distance, default=None)


def month_of(month: int) -> Callable[[int], Span]:
    """Returns a month as a span of a year."""
    return lambda year: (_first_of_month(year, month), _first_of_month(year, month + 1))


def season_of(first_month: int) -> Callable[[int], Span]:
    """Returns a season as a span of the year in which it begins."""
    return lambda year: (_first_of_month(year, first_month), _first_of_month(year, first_month + 3))


def quarter_of(number: int) -> Callable[[int], Span]:
    """Returns a quarter as a span of a year."""
    return season_of(3 * number - 2)


def days_of(month: int, first: int, last: int) -> Callable[[int], Span]:
    """Returns days of a month as a span of a year, which raises ValueError if the month has no such day."""
    return lambda year: (local_day(year, month, first), local_day(year, month, last) + DAY)


def year_span(year: int) -> Span:
    return local_day(year, 1, 1), local_day(year + 1, 1, 1)


def _first_of_month(year: int, month: int) -> datetime:
    """Returns the first day of a month. Months before 1 and after 12 are those of other years."""
    return local_day(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)


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
