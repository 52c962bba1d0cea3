"""The times that a query about facts names: when they held, or when they were known."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from mnemesh_retrieval.time_expressions.resolver import resolve

from mnemesh_recall.model.episode_operations import FactFilter, FactTimes, MemorySearch

_INSTANT: Final = timedelta(microseconds=1)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_KNOWLEDGE: Final = re.compile(
    r"(?i)\b(?:did|had|have|has) (?:you|we|i|they|he|she|it) (?:already |ever |really )?"
    r"(?:know|known|think|thought|believe|believed|learn|learned|learnt|assume|assumed|remember|remembered)\b"
    r"|\b(?:you|we|i) (?:already |really )?(?:knew|thought|believed|assumed|had learned)\b"
    r"|\b(?:was|were|is|are) (?:already )?known\b|\bknowledge (?:of|from|in|at|as of)\b|\bas of\b"
)


def fact_times(query: str, zone: tzinfo, reference: datetime) -> FactTimes | None:
    """Returns the times that a query names; None if it names none.

    The first expression counts. A query that asks what was known then ("what did you know in May") names a time of
    knowledge: the end of the period, or the reference if that is later. Any other names a period of validity.
    """
    ranges = resolve(query, zone, reference)
    if not ranges:
        return None
    first = ranges[0]
    end = reference if first.end is None else max(_EARLIEST, first.end - _INSTANT)
    if _KNOWLEDGE.search(query):
        return FactTimes(first.expression, known_at=min(end, reference))
    since = _EARLIEST if first.start is None else first.start
    return FactTimes(first.expression, valid_since=min(since, end), valid_at=end)


def with_times(search: MemorySearch[Any]) -> tuple[MemorySearch[Any], FactTimes | None]:
    """Returns a search with the times that its query names, and these; None if they are not to be resolved."""
    filter_, reference = search.filter, search.reference_time
    if reference is None or not isinstance(filter_, FactFilter):
        return search, None
    if filter_.valid_at is not None or filter_.known_at is not None or filter_.include_invalid:
        return search, None
    times = fact_times(search.query, search.time_zone, reference)
    if times is None:
        return search, None
    # What was known then is what was held to be true then.
    valid_at = times.valid_at or times.known_at
    timed = replace(filter_, valid_since=times.valid_since, valid_at=valid_at, known_at=times.known_at)
    return replace(search, filter=timed), times
