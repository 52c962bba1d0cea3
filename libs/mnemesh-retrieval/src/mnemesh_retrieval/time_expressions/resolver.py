"""The ranges of time that the expressions in a query denote.

A range is half-open, in UTC, and made of whole local days unless the expression counts hours or minutes or names a part
of a day. English expressions need a reference time; complete numeric dates do not. docs/retrieval.md ("Asking") says
how ambiguous expressions are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final

from mnemesh_retrieval.time_expressions.calendar import local_day
from mnemesh_retrieval.time_expressions.grammar import expression
from mnemesh_retrieval.time_expressions.reading import Found, Reading
from mnemesh_retrieval.time_expressions.tokens import tokens_of

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
