"""Lists a range of a collection in the order of a datetime field with ties by id, on engines that do not order ties.

The engines order by the field only. Groups of ties at the start, at the end and at the limit of the range are
therefore read completely and sorted here. The algorithm is a generator that yields its queries and receives their
results, so that adapters may be synchronous or asynchronous.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from mnemesh_retrieval.filters import Filter, TimeRange, all_of
from mnemesh_retrieval.index import ListQuery, Position

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AllPoints:
    """Queries the positions of all matching points, in any order. Their times are known and may be omitted."""

    condition: Filter


@dataclass(frozen=True, slots=True)
class FirstPoints:
    """Queries the positions of the first matching points in the order of the field; ties in any order."""

    condition: Filter
    limit: int


PointQuery = AllPoints | FirstPoints
Listing = Generator[PointQuery, list[Position], list[UUID]]


def listed_ids(query: ListQuery) -> Listing:
    """Yields queries and returns the ids of the range, in order."""
    first, last = query.after, query.before
    if query.limit <= 0:
        return []
    if first is not None and last is not None and first.value == last.value:
        ties = yield from _ties(query, first.value)
        return ties[: query.limit]
    ids: list[UUID] = []
    if first is not None:
        ids += yield from _ties(query, first.value)
    if len(ids) < query.limit:
        ids += yield from _strictly_between(query, query.limit - len(ids))
    if len(ids) < query.limit and last is not None:
        ids += yield from _ties(query, last.value)
    return ids[: query.limit]


def _strictly_between(query: ListQuery, limit: int) -> Listing:
    low, high = (query.before, query.after) if query.descending else (query.after, query.before)
    begin = _next(low.value) if low else None
    if low is not None and begin is None:
        return []
    between = TimeRange(query.order_by, gte=begin, lt=high.value if high else None)
    positions = yield FirstPoints(all_of(query.filter, between), limit)
    cut = positions[-1].value if len(positions) == limit else None
    whole = [position for position in positions if position.value != cut]
    ids = [position.id for position in sorted(whole, reverse=query.descending)]
    if cut is not None:
        ids += yield from _ties(query, cut)
    return ids


def _ties(query: ListQuery, value: datetime) -> Listing:
    """Returns the ids at exactly this time that are in the range, in order."""
    at = TimeRange(query.order_by, gte=value, lt=_next(value))
    positions = yield AllPoints(all_of(query.filter, at))
    inside = [position.id for position in positions if _inside(Position(value, position.id), query)]
    return sorted(inside, reverse=query.descending)


def _next(value: datetime) -> datetime | None:
    """Returns the next microsecond; None after the last one."""
    try:
        return value + _MICROSECOND
    except OverflowError:
        return None


def _inside(position: Position, query: ListQuery) -> bool:
    low, high = (query.before, query.after) if query.descending else (query.after, query.before)
    return (low is None or position > low) and (high is None or position < high)
