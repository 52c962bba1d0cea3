"""Stretches of a collection in the order of a datetime field, exact among ties, on engines that are not.

The engines order by the field alone and leave ties in any order, so groups of ties that a stretch begins, ends or is
cut in are read by id, and put in order here. The algorithm asks and is answered, so that adapters may be synchronous
or not.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from mnemesh_retrieval.filters import Filter, TimeRange, all_of
from mnemesh_retrieval.index import ListQuery, Position

TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Every:
    """Asks for the places of all matching points, in any order; their times are known and need not be given."""

    condition: Filter


@dataclass(frozen=True, slots=True)
class First:
    """Asks for the places of the first matching points in the order of the field; ties in any order."""

    condition: Filter
    limit: int


Asking = Generator[Every | First, list[Position], list[UUID]]


def listed_ids(query: ListQuery) -> Asking:
    """The ids of the stretch, in order."""
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


def _strictly_between(query: ListQuery, limit: int) -> Asking:
    low, high = (query.before, query.after) if query.descending else (query.after, query.before)
    begin = _next(low.value) if low else None
    if low is not None and begin is None:
        return []
    between = TimeRange(query.order_by, gte=begin, lt=high.value if high else None)
    places = yield First(all_of(query.filter, between), limit)
    cut = places[-1].value if len(places) == limit else None
    whole = [place for place in places if place.value != cut]
    ids = [place.id for place in sorted(whole, reverse=query.descending)]
    if cut is not None:
        ids += yield from _ties(query, cut)
    return ids


def _ties(query: ListQuery, value: datetime) -> Asking:
    """All ids at this very time that lie in the stretch, in order."""
    at = TimeRange(query.order_by, gte=value, lt=_next(value))
    places = yield Every(all_of(query.filter, at))
    inside = [place.id for place in places if _inside(Position(value, place.id), query)]
    return sorted(inside, reverse=query.descending)


def _next(value: datetime) -> datetime | None:
    """The instant after this one; None after the last one there is."""
    try:
        return value + TICK
    except OverflowError:
        return None


def _inside(place: Position, query: ListQuery) -> bool:
    low, high = (query.before, query.after) if query.descending else (query.after, query.before)
    return (low is None or place > low) and (high is None or place < high)
