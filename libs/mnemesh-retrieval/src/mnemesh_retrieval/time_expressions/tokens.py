"""The English words of dates, the words and numbers of a query, and its reading from left to right."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final

from mnemesh_retrieval.time_expressions.calendar import DAY, Recurring, Span, day_of, local_day, month_of

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
