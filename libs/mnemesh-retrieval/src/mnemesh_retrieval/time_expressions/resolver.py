"""The ranges of time that the expressions in a query denote.

An expression is a period, alone or after a preposition, a bound, a range, or a part of a period.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Final

from mnemesh_retrieval.time_expressions import periods, tokens
from mnemesh_retrieval.time_expressions.tokens import (
    CALENDAR_UNITS,
    HOLIDAYS,
    MONTHS,
    NUMBERS,
    ORDINALS,
    SEASONS,
    SHORT_WEEKDAYS,
    UNITS,
    VAGUE_NUMBERS,
    WEEKDAYS,
    Evidence,
    Found,
    OpenSpan,
    Reading,
    local_day,
    tokens_of,
)

_Rule = Callable[[Reading, int, Evidence], Found | None]
_PREPOSITIONS: Final = {
    **dict.fromkeys(("in", "during", "throughout"), Evidence.TIME),
    **dict.fromkeys(("on", "at", "over", "around", "by", "of", "for", "from"), Evidence.PREPOSITION),
}
_BOUNDS: Final = frozenset({"since", "before", "after", "until", "till"})
_CONNECTORS: Final = {
    "between": frozenset({"and", "to"}),
    "from": frozenset({"to", "until", "till", "through", "thru"}),
}
_EARLY: Final = {"early": 0, "mid": 1, "late": 2}
_PARTS: Final = {"beginning": 0, "start": 0, "middle": 1, "end": 2}
_PARTED: Final = frozenset({*_PARTS, *UNITS, "half", "rest", "part"})
"""Words after which "of" precedes a time: "the end of May"."""
_SHORTEST_PARTED: Final = 4
"""The number of days below which "early" and "late" do not narrow a period."""


def expression(reading: Reading, index: int) -> Found | None:
    """Returns the expression that begins at a token.

    Raises:
        ValueError, OverflowError: it is beyond the years 1 to 9999.
    """
    word = reading.word(index)
    if word in _CONNECTORS and (found := _between(reading, index)) is not None:
        return found
    if word in _BOUNDS:
        return _bounded(reading, index)
    if (evidence := _PREPOSITIONS.get(word)) is None:
        return _period(reading, index, Evidence.NONE)
    start = _object(reading, index)
    if (word == "of" and reading.word(index - 1) in _PARTED) or (word == "over" and start == index + 2):
        evidence = Evidence.TIME
    return _period(reading, start, evidence)


def _period(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads one period. The word before it has given the evidence."""
    if index >= len(reading.tokens) or (evidence and not _is_joined(reading, index)):
        return None
    token = reading.tokens[index]
    if token.dates:
        return periods.numeric_date(reading, index, evidence)
    rules = _NUMBER_RULES if token.word[:1].isdigit() else _RULES.get(token.word, ())
    for rule in rules:
        if (found := rule(reading, index, evidence)) is not None:
            return found
    return None


def _bounded(reading: Reading, index: int) -> Found | None:
    """Reads "since Tuesday", "after Christmas", "before May" and "until last week"."""
    word = reading.word(index)
    evidence = Evidence.PREPOSITION if word in ("before", "after") else Evidence.TIME
    found = _period(reading, _object(reading, index), evidence)
    if found is None:
        return None
    return replace(found, spans=tuple(_bound(reading, word, span) for span in found.spans), recurring=None)


def _bound(reading: Reading, word: str, span: OpenSpan) -> OpenSpan:
    start, end = span
    if word == "before":
        return None, start
    if word in ("until", "till"):
        return None, end
    first = start if word == "since" else end
    is_past = first is not None and (first.replace(tzinfo=None) < reading.now)
    return first, reading.reference if is_past else None


def _between(reading: Reading, index: int) -> Found | None:
    """Reads "between March and May", "from 7 to 9 May" and "between May 7 and 9"."""
    connectors = _CONNECTORS[reading.word(index)]
    start = _object(reading, index)
    first = _period(reading, start, Evidence.TIME)
    middle = start + 1 if first is None else first.next
    if reading.joined(middle) not in connectors:
        return None
    last = _period(reading, _object(reading, middle), Evidence.TIME)
    if first is None and last is not None:
        first = _same_month(reading, start, last)
    if last is None and first is not None:
        last = _same_month(reading, middle + 1, first)
        last = None if last is None else replace(last, next=middle + 2)
    if first is None or last is None:
        return None
    span = _joined_span(first, last)
    is_complete = first.is_complete and last.is_complete
    return None if span is None else Found((span,), last.next, is_complete)


def _joined_span(first: Found, last: Found) -> OpenSpan | None:
    """Returns the span from one period to another. A period without a year, month or week is beside the other."""
    begin, end = first.spans[0], last.spans[0]
    if first.recurring is not None and last.recurring is None and end[0] is not None and not end[0].tzinfo:
        begin = tokens.latest(first.recurring, end[0]) or begin
    elif last.recurring is not None and begin[0] is not None and not begin[0].tzinfo:
        end = tokens.following(last.recurring, begin[0] - tokens.DAY) or end
    if begin[0] is None or end[1] is None or begin[0].replace(tzinfo=None) >= end[1].replace(tzinfo=None):
        return None
    return begin[0], end[1]


def _same_month(reading: Reading, index: int, day: Found) -> Found | None:
    """Returns the day of the number at a token, in the month of another day."""
    number, _ = periods.day_number(reading, index)
    start, end = day.spans[0]
    if number is None or start is None or end is None or end - start != tokens.DAY:
        return None
    moved = start.replace(day=number)
    return Found(((moved, moved + tokens.DAY),), day.next, day.is_complete)


def _early(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "early May", "mid-2023" and "late last year"."""
    is_name = evidence == Evidence.TIME or reading.is_capitalized(index + 1)
    found = _period(reading, index + 1, Evidence.TIME if is_name else Evidence.PREPOSITION)
    return _part(found, _EARLY[reading.word(index)])


def _part_of(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the end of May" and "the beginning of the year"."""
    if reading.joined(index + 1) != "of":
        return None
    start = _object(reading, index + 1)
    found = _period(reading, start, Evidence.TIME)
    if found is None and reading.word(start - 1) == "the" and (unit := reading.joined(start)) in CALENDAR_UNITS:
        found = Found((tokens.unit_span(unit, reading.today),), start + 1)
    return _part(found, _PARTS[reading.word(index)])


def _part(found: Found | None, index: int) -> Found | None:
    if found is None:
        return None
    start, end = found.spans[0]
    if start is None or end is None or (end - start).days < _SHORTEST_PARTED:
        return None
    return Found((tokens.part((start, end), index, 3),), found.next)


def _week_of(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the week of 7 May"."""
    if reading.joined(index + 1) != "of":
        return None
    found = _period(reading, _object(reading, index + 1), Evidence.PREPOSITION)
    if found is None or found.spans[0][0] is None or found.spans[0][0].tzinfo:
        return None
    week = tokens.unit_span("week", tokens.day_of(found.spans[0][0]))
    return Found((week,), found.next)


def _beside(reading: Reading, index: int, _: Evidence) -> Found | None:
    """Reads "the week before Christmas" and "two days after 7 May"."""
    number, place = periods.quantity(reading, index)
    unit = UNITS.get(reading.joined(place) if number else reading.word(place))
    side = reading.joined(place + 1)
    if unit is None or unit in periods.CLOCK_UNITS or side not in ("before", "after"):
        return None
    found = _period(reading, place + 2, Evidence.PREPOSITION)
    if found is None or found.spans[0][0] is None or found.spans[0][1] is None or found.spans[0][0].tzinfo:
        return None
    first, last = tokens.day_of(found.spans[0][0]), tokens.day_of(found.spans[0][1] - tokens.DAY)
    sign, anchor = (-1, first) if side == "before" else (1, last)
    if number:
        fewest, most = sorted(sign * count for count in number)
        return Found((tokens.around(anchor, unit, fewest, most),), found.next)
    edge = tokens.moved(anchor, unit, sign)
    return Found(((edge, first) if sign < 0 else (last + tokens.DAY, edge + tokens.DAY),), found.next)


def _weekend(reading: Reading, index: int, evidence: Evidence) -> Found | None:
    """Reads "the weekend" after a preposition."""
    is_weekend = evidence and reading.word(index - 1) == "the"
    return periods.latest_of(reading, periods.WEEKEND, index + 1) if is_weekend else None


def _object(reading: Reading, preposition: int) -> int:
    """Returns the token after a preposition and an article."""
    return preposition + 1 + (reading.joined(preposition + 1) == "the")


def _is_joined(reading: Reading, index: int) -> bool:
    return not reading.tokens[index].begins_sentence


_NUMBER_RULES: Final[tuple[_Rule, ...]] = (
    periods.day_and_month, periods.ago, _beside, periods.year, periods.ordinal_period, periods.day_of_month,
)  # fmt: skip


def _table() -> Mapping[str, tuple[_Rule, ...]]:
    """Returns the rules by the word with which they begin."""
    rules: dict[str, tuple[_Rule, ...]] = {}
    for words, added in (
        (("today", "yesterday", "tomorrow", "tonight"), periods.named_day),
        (("other",), periods.other_day),
        (("earlier",), periods.earlier),
        (periods.SELECTORS, periods.selected),
        (("half", *NUMBERS, *VAGUE_NUMBERS), periods.ago),
        (ORDINALS, periods.day_and_month),
        (ORDINALS, periods.ordinal_period),
        (("day", "night", *CALENDAR_UNITS), periods.day_before_yesterday),
        (("week",), _week_of),
        ((*UNITS, *NUMBERS, *VAGUE_NUMBERS), _beside),
        (MONTHS, periods.month),
        (SEASONS, periods.season),
        (("q1", "q2", "q3", "q4"), periods.quarter),
        ({words[0] for words in HOLIDAYS}, periods.holiday),
        ((*WEEKDAYS, *SHORT_WEEKDAYS), periods.weekday),
        (("weekend",), _weekend),
        (_EARLY, _early),
        (_PARTS, _part_of),
    ):
        for word in words:
            rules[word] = (*rules.get(word, ()), added)
    return rules


_RULES: Final = _table()


MAX_RANGES: Final = 10
"""The largest number of ranges of one query."""
_NO_REFERENCE: Final = local_day(2000, 1, 1)
"""Complete dates do not depend on it."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """An expression of time, and the half-open range that it denotes."""

    expression: str
    """The words of the query."""
    start: datetime | None
    """In UTC, inclusive; None if the range has no lower bound, as in "before May"."""
    end: datetime | None
    """In UTC, exclusive; None if the range has no upper bound."""


def resolve_all(queries: Iterable[str], zone: tzinfo, reference: datetime | None) -> tuple[TimeRange, ...]:
    """Returns the ranges of several queries, each once, in the order of the queries. See `resolve`."""
    return tuple(dict.fromkeys(found for query in queries for found in resolve(query, zone, reference)))


def resolve(query: str, zone: tzinfo, reference: datetime | None) -> tuple[TimeRange, ...]:
    """Returns the ranges of the expressions of time in a query, in order; two for an ambiguous date like 05/07/2023.

    Args:
        query: the query. Its first 2,000 characters are read.
        zone: the zone of local days and times.
        reference: the aware time from which "last week" is resolved. None recognises only complete dates.
    """
    tokens = tokens_of(query)
    reading = Reading(tokens, _local(reference, zone), None if reference is None else reference.astimezone(UTC))
    ranges: list[TimeRange] = []
    index = 0
    while index < len(tokens) and len(ranges) < MAX_RANGES:
        found = _read(reading, index)
        if found is None:
            index += 1
            continue
        if reference is not None or found.is_complete:
            words = query[tokens[index].start : tokens[found.next - 1].end]
            ranges += _ranges(words, found, zone)
        index = found.next
    return tuple(ranges[:MAX_RANGES])


def _local(reference: datetime | None, zone: tzinfo) -> datetime:
    if reference is None:
        return _NO_REFERENCE
    try:
        return reference.astimezone(zone).replace(tzinfo=None)
    except OverflowError:  # At the ends of the years 1 and 9999.
        return reference.replace(tzinfo=None)


def _read(reading: Reading, index: int) -> Found | None:
    """Returns the expression that begins at a token; None also if it is beyond the years 1 to 9999."""
    try:
        return expression(reading, index)
    except (ValueError, OverflowError):
        return None


def _ranges(words: str, found: Found, zone: tzinfo) -> Iterable[TimeRange]:
    for start, end in found.spans:
        try:
            instants = [None if moment is None else _instant(moment, zone) for moment in (start, end)]
        except OverflowError:
            continue
        yield TimeRange(words, instants[0], instants[1])


def _instant(moment: datetime, zone: tzinfo) -> datetime:
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
