"""The words and numbers of a query, and the calendar that they name."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import IntEnum
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


MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug",
            "september sept sep", "october oct", "november nov", "december dec",
        ),
        start=1,
    )
    for name in names.split()
}  # fmt: skip
SHORT_MONTHS: Final = frozenset(name for name in MONTHS if len(name) <= 4) - {"may", "june", "july"}
"""Abbreviations are months only beside a number: "Jan", "Mar" and "Dec" are other words and names."""
AMBIGUOUS_MONTHS: Final = frozenset({"march", "april", "may", "june", "august"})
"""Months that are also words or names. They are months only after a word of time, or beside a number."""
VERBS: Final = frozenset({"march", "may"})
"""Months that are words in lower case."""

WEEKDAYS: Final = {
    name: number
    for number, name in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))
}
SHORT_WEEKDAYS: Final = {"mon": 0, "tue": 1, "tues": 1, "wed": 2, "thu": 3, "thur": 3, "thurs": 3, "fri": 4, "sat": 5}
"""Abbreviations are weekdays only after "last", "next", "this" or a preposition."""
NOT_AFTER_WEEKDAY: Final = frozenset({"best", "school", "roast", "times", "club", "addams", "league", "blues"})
NOT_BEFORE_WEEKDAY: Final = frozenset(
    {"black", "ash", "palm", "taco", "cyber", "freaky", "bloody", "every", "each", "any", "a"}
)
"""Words up to two before a weekday after which it is not one day: "a dry Tuesday"."""

SEASONS: Final = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""The first months of the seasons, in the northern hemisphere."""

PARTS_OF_DAY: Final = {"morning": (4, 12), "afternoon": (12, 18), "evening": (18, 24), "night": (18, 30)}
"""The first hour and the hour after the last one."""

NUMBERS: Final = {
    word: number
    for number, word in enumerate(
        ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], start=1
    )
} | {"a": 1, "an": 1}  # fmt: skip
VAGUE_NUMBERS: Final = {"few": (2, 6), "several": (3, 10), "couple": (2, 3)}
"""The smallest and the largest number that each can mean."""
ORDINALS: Final = {"first": 1, "second": 2, "third": 3, "fourth": 4, "1st": 1, "2nd": 2, "3rd": 3, "4th": 4}

UNITS: Final = {
    form: unit
    for unit, forms in {
        "minute": "minute minutes min mins",
        "hour": "hour hours hr hrs",
        "day": "day days night nights",
        "week": "week weeks",
        "fortnight": "fortnight fortnights",
        "month": "month months",
        "quarter": "quarter quarters",
        "year": "year years yr yrs",
        "decade": "decade decades",
    }.items()
    for form in forms.split()
}
CALENDAR_UNITS: Final = frozenset({"week", "month", "quarter", "year"})
"""The units that "last", "this" and "next" select."""

PLURALS_OF_THINGS: Final = frozenset({"people", "men", "women", "children", "percent", "euro", "km", "kg"})
"""Words without a final s after which a number is not a year."""
VERBS_IN_S: Final = frozenset({"was", "is", "has", "does", "as", "this", "its"})

POSSESSIVES: Final = frozenset({"the", "my", "your", "his", "her", "its", "our", "their"})
TRUSTING: Final = frozenset(
    {"believe", "believes", "believed", "confide", "confides", "confided", "interest", "interested", "trust", "faith",
     "confidence"}
)  # fmt: skip
"""Words after which "in April" is about a person."""


MAX_CHARACTERS: Final = 2_000
"""The length of the part of a query that is read."""
_TOKEN: Final = re.compile(
    r"""
    (?<![\d.,/-])(?P<ymd>\d{4}(?P<sep>[-/.])\d{1,2}(?P=sep)\d{1,2})
        (?:[T ]\d{1,2}:\d{2}[\d:.]*(?:Z|[+-]\d\d:?\d\d)?)?(?![\d/-]|[.,]\d)
  | (?<![\d.,/-])(?P<dmy>\d{1,2}(?P<sep2>[-/.])\d{1,2}(?P=sep2)\d{4})(?![\d/-]|[.,]\d)
  | (?<![\d.,/-])(?P<ym>\d{4}-\d{2})(?![\d/-]|[.,]\d)
  | (?P<cjk>\d{4}\s?[年년]\s?\d{1,2}\s?[月월](?:\s?\d{1,2}\s?[日号號일])?)
  | (?P<word>[Qq][1-4]\b|\d+[^\W\d_]*|[^\W\d_]+)(?P<own>['’]s\b)?
    """,
    re.VERBOSE,
)  # fmt: skip
_BREAK: Final = re.compile(r"[.?!;:()\n\"“”]")
_NUMBER: Final = re.compile(r"\d+")
_FIRST_YEAR: Final = 1000
"""Smaller numbers are no years."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number or a complete date of a query."""

    word: str
    """Case-folded and without a possessive s; empty for a date."""
    start: int
    end: int
    is_capitalized: bool = False
    begins_sentence: bool = False
    """True if punctuation separates it from the token before, so that they do not form one expression."""
    dates: tuple[Span, ...] = ()
    """The readings of a numeric date. `05/07/2023` has two."""
    is_day: bool = False
    """True if the date names a day."""


def tokens_of(text: str) -> list[Token]:
    """Returns the tokens of the beginning of a text, in order."""
    found: list[Token] = []
    text = text[:MAX_CHARACTERS]
    for match in _TOKEN.finditer(text):
        word = match["word"]
        gap = text[found[-1].end : match.start()] if found else "."
        begins = _BREAK.search(gap) is not None and not (
            gap.startswith(".") and found and found[-1].word in SHORT_MONTHS and not _BREAK.search(gap, 1)
        )
        if word is None:
            dates, is_day = _readings(match)
            found.append(Token("", match.start(), match.end(), False, begins, dates, is_day))
        else:
            found.append(Token(word.casefold(), match.start(), match.end("word"), word[0].isupper(), begins))
    return found


def _readings(match: re.Match[str]) -> tuple[tuple[Span, ...], bool]:
    """Returns the spans that a numeric date can mean, none if it is invalid, and whether it names a day."""
    numbers = [int(number) for number in _NUMBER.findall(match["ymd"] or match["dmy"] or match["ym"] or match["cjk"])]
    if len(numbers) == 2:
        year, month = numbers
        return ((month_of(month)(year),) if 1 <= month <= 12 and year >= _FIRST_YEAR else ()), False
    if match["dmy"] is None:
        year, month, day = numbers
        readings = [(month, day)]
    else:
        first, second, year = numbers
        readings = [(second, first)] if match["sep2"] == "." else [(first, second), (second, first)]
    days = (_day(year, month, day) for month, day in dict.fromkeys(readings))
    return tuple(span for span in days if span is not None), True


def _day(year: int, month: int, day: int) -> Span | None:
    try:
        return (start := local_day(year, month, day), start + DAY) if year >= _FIRST_YEAR else None
    except (ValueError, OverflowError):
        return None


class Evidence(IntEnum):
    """How much the words before a period show that it is a time."""

    NONE = 0
    PREPOSITION = 1
    """One that also precedes things and persons, such as "before" or "of"."""
    TIME = 2
    """A word of time, such as "during" or "since"."""


OpenSpan = tuple[datetime | None, datetime | None]
"""A half-open span. None means no bound. A datetime without a zone is local."""


@dataclass(frozen=True, slots=True)
class Found:
    """A period at some tokens of a query."""

    spans: tuple[OpenSpan, ...]
    """Its readings, such as the two of 05/07/2023."""
    next: int
    """The token after it."""
    is_complete: bool = False
    """True if it names a day with its year, which needs no reference time."""
    recurring: Recurring | None = None
    """The period without its year, month or week, if the query does not name it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The tokens of a query, with the reference time in UTC and as a local time."""

    tokens: Sequence[Token]
    now: datetime
    """The reference time, local and without a zone."""
    reference: datetime | None
    """The reference time; None if only complete dates are recognised."""

    @property
    def today(self) -> datetime:
        """The beginning of the local day of the reference time."""
        return day_of(self.now)

    def word(self, index: int) -> str:
        """Returns the word of a token; "" for a date, and outside of the query."""
        return self.tokens[index].word if 0 <= index < len(self.tokens) else ""

    def joined(self, index: int) -> str:
        """Returns the word of a token if no punctuation separates it from the token before."""
        return "" if index >= len(self.tokens) or self.tokens[index].begins_sentence else self.word(index)

    def is_capitalized(self, index: int) -> bool:
        """Returns whether a token exists and begins with a capital letter."""
        return 0 <= index < len(self.tokens) and self.tokens[index].is_capitalized

    def is_name(self, index: int) -> bool:
        """Returns whether the token continues the sentence and looks like a name."""
        return bool(self.joined(index)) and self.is_capitalized(index)
