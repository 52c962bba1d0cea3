"""Periods that are relative to the reference time: "yesterday", "last week", "two weeks ago", "the past few days"."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from mnemesh_retrieval.time_expressions import calendar
from mnemesh_retrieval.time_expressions.calendar import Recurring, Span
from mnemesh_retrieval.time_expressions.dates import ordinal_period, part_of_day
from mnemesh_retrieval.time_expressions.holidays import HOLIDAYS
from mnemesh_retrieval.time_expressions.reading import Evidence, Found, Reading
from mnemesh_retrieval.time_expressions.vocabulary import (
    AMBIGUOUS_MONTHS,
    CALENDAR_UNITS,
    MONTHS,
    NUMBERS,
    POSSESSIVES,
    SEASONS,
    SHORT_MONTHS,
    SHORT_WEEKDAYS,
    UNITS,
    VAGUE_NUMBERS,
    VERBS,
    WEEKDAYS,
)

WEEKEND: Final = calendar.weekly(5, 2)
LAST: Final = frozenset({"last", "past", "previous"})
THIS: Final = frozenset({"this", "current"})
NEXT: Final = frozenset({"next", "coming", "upcoming"})
SELECTORS: Final = LAST | THIS | NEXT
_DAYS: Final = {"today": 0, "yesterday": -1, "tomorrow": 1}
CLOCK_UNITS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1)}
_ROLLING: Final = frozenset({"in", "over", "within", "during", "for", "through", "throughout"})
_HALVES: Final = {"year": ("month", (6, 6)), "hour": ("minute", (20, 40))}
_LARGEST_NUMBER: Final = 9_999


def named_day(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "today", "yesterday evening", "tomorrow" and "tonight"."""
    word = reading.word(index)
    if word == "tonight":
        return _hours(reading, 0, 18, 30, index + 1)
    day = calendar.unit_span("day", reading.today, _DAYS[word])
    return part_of_day(reading, day, index + 1) or Found((day,), index + 1)


def day_before_yesterday(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the day before yesterday", "the day after tomorrow", "the week before last", "the other day"."""
    words = tuple(reading.joined(index + place) for place in range(1, 3))
    unit = reading.word(index)
    if unit in ("day", "night") and words == ("before", "yesterday"):
        return Found((calendar.unit_span("day", reading.today, -2),), index + 3)
    if unit == "day" and words == ("after", "tomorrow"):
        return Found((calendar.unit_span("day", reading.today, 2),), index + 3)
    if unit in CALENDAR_UNITS and words in (("before", "last"), ("after", "next")):
        shift = -2 if words[0] == "before" else 2
        return Found((calendar.unit_span(unit, reading.today, shift),), index + 3)
    return None


def other_day(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the other day": one of the seven days before today."""
    if reading.word(index - 1) != "the" or reading.joined(index + 1) not in ("day", "night"):
        return None
    return Found(((reading.today - calendar.WEEK, reading.today),), index + 2)


def earlier(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "earlier today" and "earlier this month": the part of it that is over."""
    word = reading.joined(index + 1)
    if word == "today":
        found = named_day(reading, index + 1, evidence)
    else:
        found = selected(reading, index + 1, evidence) if word == "this" else None
    return None if found is None else Found(((found.spans[0][0], reading.reference),), found.next)


def selected(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "last week", "this month", "next Friday", "last summer", "this past weekend" and "the past three days"."""
    selector = reading.word(index)
    if selector == "this" and reading.joined(index + 1) in LAST | NEXT:
        index += 1
        selector = reading.word(index)
    if selector == "last" and (found := ordinal_period(reading, index, evidence)) is not None:
        return found
    if (rolling := _rolling(reading, selector, index)) is not None:
        return rolling
    noun, after = reading.joined(index + 1), index + 2
    if selector == "this" and (part := part_of_day(reading, _today(reading), index + 1)) is not None:
        return part
    if selector == "last" and noun == "night":
        return _hours(reading, -1, 18, 30, after)
    if reading.joined(after) == "of" or (selector in NEXT and reading.word(index - 1) == "the"):
        return None
    if noun in CALENDAR_UNITS:
        shift = -1 if selector in LAST else 0 if selector in THIS else 1
        span = calendar.unit_span(noun, reading.today, shift)
        return (noun == "year" and _month_of_year(reading, span[0].year, after)) or Found((span,), after)
    return _selected_recurring(reading, selector, index)


def _selected_recurring(reading: Reading, selector: str, index: int) -> Found | None:
    known = _recurring(reading, index)
    if known is None:
        return None
    period, after = known
    if selector in LAST:
        span = calendar.latest_over(period, reading.now)
    elif selector in NEXT:
        span = calendar.following(period, reading.now)
    else:
        span = calendar.nearest(period, reading.now)
        if (word := reading.word(index + 1)) in WEEKDAYS or word == "weekend":
            monday, sunday = calendar.unit_span("week", reading.today)
            span = next((day for day in period(reading.now) if monday <= day[0] < sunday), None)
    if span is None:
        return None
    is_day = reading.word(index + 1) in WEEKDAYS
    return (is_day and part_of_day(reading, span, after)) or Found((span,), after)


def _recurring(reading: Reading, index: int) -> tuple[Recurring, int] | None:
    """Returns the period that the word after a selector names, and the token after it."""
    word, after = reading.joined(index + 1), index + 2
    number = WEEKDAYS.get(word, SHORT_WEEKDAYS.get(word))
    if number is not None:
        return calendar.weekly(number), after
    if word == "weekend":
        return WEEKEND, after
    if word in MONTHS and _is_selected(reading, index, word in VERBS):
        return calendar.yearly(calendar.month_of(MONTHS[word])), after
    if word in SEASONS and _is_selected(reading, index, word in ("spring", "fall")):
        return calendar.yearly(calendar.season_of(SEASONS[word])), after
    for words, of_year in HOLIDAYS.items():
        if all(reading.joined(index + 1 + place) == part for place, part in enumerate(words)):
            return calendar.yearly(of_year), index + 1 + len(words)
    return None


def _is_selected(reading: Reading, index: int, is_word: bool) -> bool:
    """Returns whether "last March" is about a month: "the last march" and "this march" are not."""
    if not is_word or reading.is_capitalized(index + 1):
        return True
    return reading.word(index) == "last" and reading.word(index - 1) not in POSSESSIVES


def _month_of_year(reading: Reading, year: int, index: int) -> Found | None:
    """Reads "last year in May"."""
    if reading.joined(index) != "in" or (word := reading.joined(index + 1)) not in MONTHS:
        return None
    is_name = word in SHORT_MONTHS | AMBIGUOUS_MONTHS and reading.is_name(index + 2)
    return None if is_name else Found((calendar.month_of(MONTHS[word])(year),), index + 2)


def _rolling(reading: Reading, selector: str, index: int) -> Found | None:
    """Reads "the last three days", "the past week", and "in the last week", which end at the reference time."""
    if selector not in LAST:
        return None
    number, after = quantity(reading, index + 1)
    unit = UNITS.get(reading.joined(after))
    if unit is None:
        return None
    if number is None:
        is_singular = reading.word(after) == unit and unit != "minute"
        is_over = reading.word(index - 1) == "the" and reading.word(index - 2) in _ROLLING
        if not is_singular or not (selector == "past" or is_over) or reading.joined(after + 1) == "of":
            return None
        number = (1, 1)
    return Found(((_back(reading, unit, number[1]), reading.reference),), after + 1)


def ago(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "two weeks ago", "a few days ago", "half an hour ago" and "two Fridays ago"."""
    is_half = reading.word(index) == "half"
    number, after = quantity(reading, index + is_half)
    if number is None or (not is_half and reading.word(index - 1) == "half"):
        return None
    word = reading.joined(after)
    unit = UNITS.get(word)
    end = reading.joined(after + 1)
    if end != "ago" and not (end == "back" and not reading.joined(after + 2)):
        return None
    if unit is None:
        return _occurrences_ago(reading, word, number, after + 2)
    if is_half:
        if unit not in _HALVES:
            return None
        unit, number = _HALVES[unit]
    fewest, most = number
    if (length := CLOCK_UNITS.get(unit)) is not None:
        now = reading.reference
        if now is None:
            return None
        span: Span = (now - (most + 0.5) * length, now - (fewest - 0.5) * length)
    else:
        span = calendar.around(reading.today, unit, -most, -fewest)
    return Found((span,), after + 2)


def _occurrences_ago(reading: Reading, word: str, number: tuple[int, int], after: int) -> Found | None:
    singular = word.removesuffix("s")
    weekday = WEEKDAYS.get(singular)
    if weekday is None and singular != "weekend":
        return None
    span = calendar.latest_over(WEEKEND if weekday is None else calendar.weekly(weekday), reading.now)
    if span is None:
        return None
    fewest, most = number
    return Found(((span[0] - (most - 1) * calendar.WEEK, span[1] - (fewest - 1) * calendar.WEEK),), after)


def quantity(reading: Reading, index: int) -> tuple[tuple[int, int] | None, int]:
    """Reads "3", "three", "a", "a few" or "a couple of": the smallest and largest number, and the token after it."""
    word = reading.word(index)
    if word in ("a", "an") and reading.joined(index + 1) in VAGUE_NUMBERS:
        index += 1
        word = reading.word(index)
    if word in VAGUE_NUMBERS:
        return VAGUE_NUMBERS[word], index + 1 + (reading.joined(index + 1) == "of")
    number = int(word) if word.isdecimal() and len(word) <= 4 else NUMBERS.get(word)
    return (None, index) if number is None or number > _LARGEST_NUMBER else ((number, number), index + 1)


def _back(reading: Reading, unit: str, count: int) -> datetime | None:
    """Returns the beginning of the last `count` units: of a day, or an instant for hours and minutes."""
    if (length := CLOCK_UNITS.get(unit)) is not None:
        return None if reading.reference is None else reading.reference - count * length
    return calendar.moved(reading.today, unit, -count)


def _today(reading: Reading) -> Span:
    return calendar.unit_span("day", reading.today)


def _hours(reading: Reading, day: int, first: int, last: int, after: int) -> Found:
    start = reading.today + day * calendar.DAY
    return Found(((start + timedelta(hours=first), start + timedelta(hours=last)),), after)
