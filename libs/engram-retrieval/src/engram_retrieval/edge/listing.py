"""Stretches of a shard in the order of a datetime field, exact among ties.

The engine orders by the field alone and leaves ties in any order, so groups of ties that a stretch begins, ends or is
cut in are read by id, and put in order here.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from engram_retrieval.edge.shard import Shard
from engram_retrieval.filters import TimeRange, all_of
from engram_retrieval.index import ListQuery, Position

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def listed_ids(shard: Shard, query: ListQuery) -> list[UUID]:
    """The ids of the stretch, in order."""
    first, last = query.after, query.before
    if query.limit <= 0:
        return []
    if first is not None and last is not None and first.value == last.value:
        return _ties(shard, query, first.value)[: query.limit]
    ids: list[UUID] = []
    if first is not None:
        ids += _ties(shard, query, first.value)
    if len(ids) < query.limit:
        ids += _strictly_between(shard, query, query.limit - len(ids))
    if len(ids) < query.limit and last is not None:
        ids += _ties(shard, query, last.value)
    return ids[: query.limit]


def _strictly_between(shard: Shard, query: ListQuery, limit: int) -> list[UUID]:
    low, high = (query.before, query.after) if query.descending else (query.after, query.before)
    between = TimeRange(query.order_by, gte=low.value + TICK if low else None, lt=high.value if high else None)
    rows = shard.ordered(all_of(query.filter, between), query.order_by, query.descending, limit)
    cut = rows[-1][0] if len(rows) == limit else None
    whole = [(value, id_) for value, id_ in rows if value != cut]
    ids = [id_ for _, id_ in sorted(whole, reverse=query.descending)]
    if cut is not None:
        ids += _ties(shard, query, EPOCH + timedelta(microseconds=cut))
    return ids


def _ties(shard: Shard, query: ListQuery, value: datetime) -> list[UUID]:
    """All ids at this very time that lie in the stretch, in order."""
    at = TimeRange(query.order_by, gte=value, lt=value + TICK)
    ids = shard.every(all_of(query.filter, at))
    inside = [id_ for id_ in ids if _inside(Position(value, id_), query)]
    return sorted(inside, reverse=query.descending)


def _inside(place: Position, query: ListQuery) -> bool:
    low, high = (query.before, query.after) if query.descending else (query.after, query.before)
    return (low is None or place > low) and (high is None or place < high)
