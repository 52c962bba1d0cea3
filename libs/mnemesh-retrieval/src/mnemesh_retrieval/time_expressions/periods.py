"""Periods with a name in the calendar, and periods that are relative to the reference time.

The first are days, months, years, seasons, quarters, holidays and weekdays; the others are of the kind of
"yesterday", "last week", "two weeks ago", "the past few days".
"""

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from mnemesh_retrieval.time_expressions import tokens
from mnemesh_retrieval.time_expressions.tokens import (
    AMBIGUOUS_MONTHS,
    CALENDAR_UNITS,
    HOLIDAYS,
    MONTHS,
    NOT_AFTER_WEEKDAY,
    NOT_BEFORE_WEEKDAY,
    NUMBERS,
    ORDINALS,
    PARTS_OF_DAY,
    PLURALS_OF_THINGS,
    POSSESSIVES,
    SEASONS,
    SHORT_MONTHS,
    SHORT_WEEKDAYS,
    TRUSTING,
    UNITS,
    VAGUE_NUMBERS,
    VERBS,
    VERBS_IN_S,
    WEEKDAYS,
    Evidence,
    Found,
    Reading,
    Recurring,
    Span,
)

_DAY: Final = re.compile(r"([12]?\d|3[01])(st|nd|rd|th)?")
_YEAR: Final = re.compile(r"(19|20)\d\d")
_QUARTER: Final = re.compile(r"q[1-4]")
_YEAR_PREPOSITIONS: Final = frozenset({"before", "after", "by", "from", "of", "early", "mid", "late"})
_SHIFTS: Final = {"last": -1, "previous": -1, "this": 0, "next": 1}
_LENGTHS: Final = {"day": tokens.DAY, "week": tokens.WEEK}
_COUNTS: Final = {"half": 2, "quarter": 4}
_MONTHS_OF_YEAR: Final = 12
_LONGEST_MONTH: Final = timedelta(days=31)
_SURE_SEASONS: Final = frozenset({"spring", "summer", "autumn", "winter"})


def numeric_date(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads a numeric date, such as 2023-05-07."""
    token = reading.tokens[index]
    return Found(token.dates, index + 1, token.is_day) if token.dates else None


def day_and_month(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "7 May", "7th of May 2023" or "the first of May"."""
    day, is_ordinal = day_number(reading, index)
    after = index + 1
    if is_of := reading.joined(after) == "of":
        after += 1
    month = MONTHS.get(reading.joined(after))
    if day is None or month is None:
        return None
    is_verb = reading.word(after) in VERBS and not reading.is_capitalized(after)
    if is_verb and not (is_of or is_ordinal or evidence or not reading.joined(after + 1)):
        return None
    if not (is_of or is_ordinal or evidence) and reading.is_name(after + 1):
        return None  # 10 March Street
    return _dated(reading, tokens.days_of(month, day, day), after + 1, is_day=True)


def month(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "May 7th, 2023", "May 7", "May 2023", or "May" if it is a month here."""
    number = MONTHS[reading.word(index)]
    place = index + 1 + (reading.joined(index + 1) == "the")
    day, is_ordinal = day_number(reading, place) if reading.joined(place) else (None, False)
    if day is not None and (is_ordinal or (place == index + 1 and not _counts(reading, place))):
        return _dated(reading, tokens.days_of(number, day, day), place + 1, is_day=True)
    found = _dated(reading, tokens.month_of(number), index + 1)
    return found if found.recurring is None or _is_month(reading, index, evidence) else None


def _is_month(reading: Reading, index: int, evidence: Evidence) -> bool:
    """Returns whether the name of a month without a number means the month."""
    word = reading.word(index)
    if word in SHORT_MONTHS or word in AMBIGUOUS_MONTHS:
        if word in VERBS and not reading.is_capitalized(index) and evidence < Evidence.TIME:
            return False
        return evidence == Evidence.TIME and not reading.is_name(index + 1) and reading.word(index - 2) not in TRUSTING
    return bool(evidence) or not reading.is_name(index + 1)


def year(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "2023" after a word that makes it a year, and "1990s"."""
    word = reading.word(index)
    if word[4:] == "s" and _YEAR.fullmatch(word[:4]) and word[3] == "0":
        first = int(word[:4])
        return Found(((tokens.year_span(first)[0], tokens.year_span(first + 9)[1]),), index + 1)
    if not _YEAR.fullmatch(word) or _counts(reading, index):
        return None
    is_year = reading.word(index - 1) == "year" or (evidence and reading.word(index - 1) in _YEAR_PREPOSITIONS)
    return Found((tokens.year_span(int(word)),), index + 1) if evidence == Evidence.TIME or is_year else None


def season(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "summer 2023", "the winter of last year", or "summer" after a word of time."""
    word = reading.word(index)
    found = _dated(reading, tokens.season_of(SEASONS[word]), index + 1)
    is_season = evidence == Evidence.TIME and (word in _SURE_SEASONS or reading.is_capitalized(index))
    return found if found.recurring is None or is_season else None


def quarter(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "Q1 2023", or "Q1" after a preposition."""
    word = reading.word(index)
    if not _QUARTER.fullmatch(word):
        return None
    found = _dated(reading, tokens.quarter_of(int(word[1])), index + 1)
    return found if found.recurring is None or evidence else None


def ordinal_period(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "first quarter of 2023", "second half of May", "third week of May" and "last week of May 2023"."""
    word, unit = reading.word(index), reading.joined(index + 1)
    number = -1 if word == "last" else ORDINALS.get(word, 0) - 1
    if reading.joined(index + 2) != "of" or (number < 0 and word != "last"):
        return None
    whole = _whole(reading, index + 3)
    if whole is None:
        return None
    (start, end), after = whole
    if (length := _LENGTHS.get(unit)) is not None:
        span = (end - length, end) if number < 0 else (start + number * length, start + (number + 1) * length)
        return Found((span,), after)
    count = _COUNTS.get(unit, 0)
    if number >= count:
        return None
    if end - start <= _LONGEST_MONTH:  # A month has halves, but no quarters.
        return Found((tokens.part((start, end), number % 2, 2),), after) if count == 2 else None
    months = _MONTHS_OF_YEAR // count
    first = tokens.add_months(start, number % count * months)
    return Found(((first, tokens.add_months(first, months)),), after)


def _whole(reading: Reading, index: int) -> tuple[Span, int] | None:
    """Returns the month or year of which something is a part, and the token after it."""
    if (found := _year_at(reading, index)) is not None:
        return tokens.year_span(found[0]), found[1]
    number = MONTHS.get(reading.joined(index))
    if number is None:
        return None
    known = _year_at(reading, index + 1)
    if known is not None:
        return tokens.month_of(number)(known[0]), known[1]
    span = tokens.latest(tokens.yearly(tokens.month_of(number)), reading.now)
    return None if span is None else (span, index + 1)


def holiday(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "Christmas 2022", "New Year's Eve", or "Christmas" after a preposition."""
    for words, of_year in HOLIDAYS.items():
        if reading.word(index) == words[0] and all(
            reading.joined(index + place) == word for place, word in enumerate(words[1:], start=1)
        ):
            found = _dated(reading, of_year, index + len(words))
            is_name = len(words) > 1 and words != ("new", "year") and reading.is_capitalized(index)
            return found if found.recurring is None or evidence or is_name else None
    return None


def weekday(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "Tuesday", "Tuesday morning" or "Sunday, 7 May 2023"."""
    word = reading.word(index)
    number = WEEKDAYS.get(word, SHORT_WEEKDAYS.get(word))
    if number is None or (word in SHORT_WEEKDAYS and not evidence):
        return None
    if (dated := _day_at(reading, index + 1)) is not None:
        return dated
    before, after = {reading.word(index - 1), reading.word(index - 2)}, reading.joined(index + 1)
    if before & NOT_BEFORE_WEEKDAY or after in NOT_AFTER_WEEKDAY or (not evidence and reading.is_name(index + 1)):
        return None
    return with_part_of_day(reading, tokens.weekly(number), index + 1)


def _day_at(reading: Reading, index: int) -> Found | None:
    """Reads the date after a weekday."""
    word = reading.joined(index)
    found = None
    if word[:1].isdigit():
        found = day_and_month(reading, index, Evidence.TIME)
    elif word in MONTHS and day_number(reading, index + 1)[0] is not None:
        found = month(reading, index, Evidence.TIME)
    return found


def with_part_of_day(reading: Reading, period: Recurring, after: int) -> Found | None:
    """Returns the latest occurrence of a weekday, or the part of that day which the next word names."""
    span = tokens.latest(period, reading.now)
    if span is None:
        return None
    if (narrowed := part_of_day(reading, span, after)) is not None:
        return narrowed
    return Found((span,), after, recurring=period)


def part_of_day(reading: Reading, day: Span, index: int) -> Found | None:
    """Returns the part of a day that a word names."""
    hours = PARTS_OF_DAY.get(reading.joined(index))
    if hours is None:
        return None
    first, last = hours
    return Found(((day[0] + timedelta(hours=first), day[0] + timedelta(hours=last)),), index + 1)


def day_of_month(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "the 7th" at the end of a sentence."""
    day, is_ordinal = day_number(reading, index)
    is_day = evidence and reading.word(index - 1) == "the" and reading.word(index) not in ORDINALS
    if day is None or not (is_ordinal and is_day) or reading.joined(index + 1):
        return None
    return latest_of(reading, tokens.monthly(day), index + 1)


def latest_of(reading: Reading, period: Recurring, after: int) -> Found | None:
    """Returns the latest occurrence of a period that began before the reference time."""
    span = tokens.latest(period, reading.now)
    return None if span is None else Found((span,), after, recurring=period)


def _dated(reading: Reading, of_year: Callable[[int], Span], after: int, *, is_day: bool = False) -> Found:
    """Returns a period of the year that follows it, or else its latest occurrence."""
    if (given := _year_at(reading, after + (reading.joined(after) == "of"))) is not None:
        number, end = given
        return Found((of_year(number),), end, is_complete=is_day and reading.word(end - 1) != "year")
    period = tokens.yearly(of_year)
    span = tokens.latest(period, reading.now)
    if span is None:
        raise ValueError("The period has not begun in the years 1 to 9999.")
    return Found((span,), after, recurring=period)


def _year_at(reading: Reading, index: int) -> tuple[int, int] | None:
    """Returns the year that a token or two name, and the token after them."""
    word = reading.joined(index)
    if _YEAR.fullmatch(word) and not _counts(reading, index):
        return int(word), index + 1
    if word in _SHIFTS and reading.joined(index + 1) == "year":
        return reading.now.year + _SHIFTS[word], index + 2
    return None


def day_number(reading: Reading, index: int) -> tuple[int | None, bool]:
    """Returns the day of a month that a token names, and whether it is an ordinal."""
    word = reading.word(index) if index < len(reading.tokens) else ""
    if match := _DAY.fullmatch(word):
        return int(match[1]) or None, match[2] is not None
    return (ORDINALS[word], True) if word in ORDINALS and reading.joined(index + 1) == "of" else (None, False)


def _counts(reading: Reading, index: int) -> bool:
    """Returns whether the number at a token counts the things that the next word names."""
    after = reading.joined(index + 1)
    if not after or reading.is_capitalized(index + 1):
        return False
    return after in PLURALS_OF_THINGS or (len(after) > 3 and after.endswith("s") and after not in VERBS_IN_S)


WEEKEND: Final = tokens.weekly(5, 2)
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
    day = tokens.unit_span("day", reading.today, _DAYS[word])
    return part_of_day(reading, day, index + 1) or Found((day,), index + 1)


def day_before_yesterday(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the day before yesterday", "the day after tomorrow", "the week before last", "the other day"."""
    words = tuple(reading.joined(index + place) for place in range(1, 3))
    unit = reading.word(index)
    if unit in ("day", "night") and words == ("before", "yesterday"):
        return Found((tokens.unit_span("day", reading.today, -2),), index + 3)
    if unit == "day" and words == ("after", "tomorrow"):
        return Found((tokens.unit_span("day", reading.today, 2),), index + 3)
    if unit in CALENDAR_UNITS and words in (("before", "last"), ("after", "next")):
        shift = -2 if words[0] == "before" else 2
        return Found((tokens.unit_span(unit, reading.today, shift),), index + 3)
    return None


def other_day(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the other day": one of the seven days before today."""
    if reading.word(index - 1) != "the" or reading.joined(index + 1) not in ("day", "night"):
        return None
    return Found(((reading.today - tokens.WEEK, reading.today),), index + 2)


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
        span = tokens.unit_span(noun, reading.today, shift)
        return (noun == "year" and _month_of_year(reading, span[0].year, after)) or Found((span,), after)
    return _selected_recurring(reading, selector, index)


def _selected_recurring(reading: Reading, selector: str, index: int) -> Found | None:
    known = _recurring(reading, index)
    if known is None:
        return None
    period, after = known
    if selector in LAST:
        span = tokens.latest_over(period, reading.now)
    elif selector in NEXT:
        span = tokens.following(period, reading.now)
    else:
        span = tokens.nearest(period, reading.now)
        if (word := reading.word(index + 1)) in WEEKDAYS or word == "weekend":
            monday, sunday = tokens.unit_span("week", reading.today)
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
        return tokens.weekly(number), after
    if word == "weekend":
        return WEEKEND, after
    if word in MONTHS and _is_selected(reading, index, word in VERBS):
        return tokens.yearly(tokens.month_of(MONTHS[word])), after
    if word in SEASONS and _is_selected(reading, index, word in ("spring", "fall")):
        return tokens.yearly(tokens.season_of(SEASONS[word])), after
    for words, of_year in HOLIDAYS.items():
        if all(reading.joined(index + 1 + place) == part for place, part in enumerate(words)):
            return tokens.yearly(of_year), index + 1 + len(words)
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
    return None if is_name else Found((tokens.month_of(MONTHS[word])(year),), index + 2)


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
        span = tokens.around(reading.today, unit, -most, -fewest)
    return Found((span,), after + 2)


def _occurrences_ago(reading: Reading, word: str, number: tuple[int, int], after: int) -> Found | None:
    singular = word.removesuffix("s")
    weekday = WEEKDAYS.get(singular)
    if weekday is None and singular != "weekend":
        return None
    span = tokens.latest_over(WEEKEND if weekday is None else tokens.weekly(weekday), reading.now)
    if span is None:
        return None
    fewest, most = number
    return Found(((span[0] - (most - 1) * tokens.WEEK, span[1] - (fewest - 1) * tokens.WEEK),), after)


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
    return tokens.moved(reading.today, unit, -count)


def _today(reading: Reading) -> Span:
    return tokens.unit_span("day", reading.today)


def _hours(reading: Reading, day: int, first: int, last: int, after: int) -> Found:
    start = reading.today + day * tokens.DAY
    return Found(((start + timedelta(hours=first), start + timedelta(hours=last)),), after)
