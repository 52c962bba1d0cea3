"""Queries in terms of an engine, for the adapters of the vector index: filters, ordered lists, parts of searches."""

from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar
from uuid import UUID

import numpy as np

from mnemesh_retrieval.errors import PointInvalid, VectorIndexError
from mnemesh_retrieval.filters import (
    And,
    Filter,
    HasId,
    HasWords,
    Match,
    MatchAll,
    MatchAny,
    Not,
    Or,
    Scalar,
    TimeRange,
    all_of,
)
from mnemesh_retrieval.index import Hit, ListQuery, Point, Position, SearchMode, SearchQuery, WordMatch
from mnemesh_retrieval.words.analysis import CJK_RUN

C = TypeVar("C")


class FilterBuilder(Protocol[C]):
    """Builds conditions of an engine."""

    def equals(self, field: str, value: Scalar) -> C:
        """Returns: the field is, or contains, the value."""
        ...

    def among(self, field: str, values: Sequence[str]) -> C:
        """Returns: the field is, or contains, one of the values."""
        ...

    def words(self, field: str, text: str) -> C:
        """Returns: the text index of the field has every word."""
        ...

    def substring(self, field: str, text: str) -> C:
        """Returns: the field contains these characters."""
        ...

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> C:
        """Returns: the datetime is in [gte, lt)."""
        ...

    def ids(self, ids: Sequence[UUID]) -> C:
        """Returns: the point is one of these; without ids, no point matches."""
        ...

    def every(self, conditions: Sequence[C]) -> C:
        """Returns: all conditions hold; without conditions, every point matches."""
        ...

    def some(self, conditions: Sequence[C]) -> C:
        """Returns: at least one of one or more conditions holds."""
        ...

    def none(self, condition: C) -> C:
        """Returns: the condition does not hold."""
        ...


def translate_filter(condition: Filter, builder: FilterBuilder[C]) -> C:
    """Returns a condition of the engine that matches the same points."""
    match condition:
        case Match(field, value):
            return builder.equals(field, value)
        case MatchAny(_, ()) | Or(()):
            return builder.ids(())  # no point; engines treat an empty alternative as no condition
        case MatchAny(field, values):
            return builder.among(field, values)
        case MatchAll(field, values):
            return builder.every([builder.equals(field, value) for value in values])
        case HasWords(field, text):
            return _has_words(field, text, builder)
        case TimeRange(_, None, None):
            return builder.every(())
        case TimeRange(field, gte, lt):
            return builder.between(field, gte, lt)
        case HasId(ids):
            return builder.ids(ids)
        case And(conditions):
            return builder.every([translate_filter(each, builder) for each in conditions])
        case Or(conditions):
            return builder.some([translate_filter(each, builder) for each in conditions])
        case Not(inner):
            return builder.none(translate_filter(inner, builder))


def _has_words(field: str, text: str, builder: FilterBuilder[C]) -> C:
    """Runs of CJK characters must occur literally, because text indexes find no words in them."""
    runs = CJK_RUN.findall(text)
    conditions = [builder.substring(field, run) for run in runs]
    spaced = CJK_RUN.sub(" ", text)
    if spaced.strip() or not runs:
        conditions.append(builder.words(field, spaced))
    return builder.every(conditions)


Scored = list[tuple[UUID, float]]


def stored_vector(point: Point, dimension: int) -> list[float] | None:
    """Returns the vector to store; None for a point that only words find. Raises PointInvalid."""
    if point.vector is None:
        return None
    if point.vector.shape != (dimension,) or not bool(np.isfinite(point.vector).all()):
        raise PointInvalid(f"point {point.id}: the vector must have {dimension} finite numbers")
    return list(point.vector.tolist()) if point.vector.any() else None


def query_vector(query: SearchQuery, dimension: int) -> list[float] | None:
    """Returns the vector to compare with; None without one, or in TEXT mode. Raises PointInvalid."""
    if query.mode is SearchMode.TEXT or query.vector is None or not query.vector.any():
        return None
    if query.vector.shape != (dimension,):
        raise PointInvalid(f"the vector of the query must have {dimension} numbers")
    return list(query.vector.tolist())


def require_one_list(query: SearchQuery) -> None:
    """Raises VectorIndexError for the mode of two lists."""
    if query.mode is SearchMode.HYBRID:
        raise VectorIndexError("mode: a search is by vector or by words; `candidates` returns both lists")


def word_match(
    id_: UUID, score: float, query_words: Mapping[int, int], point_words: Sequence[int], weights: Sequence[float]
) -> WordMatch:
    """Returns the words of a query that a point has. `query_words` are those of `words.sparse.query_numbers`."""
    words = {
        query_words[number]: weight
        for number, weight in zip(point_words, weights, strict=True)
        if number in query_words
    }
    return WordMatch(id_, score, words)


def sorted_matches(found: Iterable[WordMatch]) -> list[WordMatch]:
    """Returns the matches that have any of the words, best first, ties by id."""
    return sorted((match for match in found if match.score > 0), key=lambda match: (-match.score, match.id))


def sorted_scores(found: Scored) -> Scored:
    """Returns the scores, best first, ties by id."""
    return sorted(found, key=lambda item: (-item[1], item[0]))


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


Search = Callable[[str, SearchQuery], Awaitable[list[Hit]]]


class SearchedComparison:
    """See Comparison. `similarities` searches among the points."""

    def __init__(self, search: Search, collection: str, query: SearchQuery, hits: list[Hit]) -> None:
        self.hits = hits
        self._search = search
        self._collection = collection
        self._query = query

    async def similarities(self, ids: Collection[bytes]) -> dict[bytes, float]:
        """See Comparison.similarities."""
        known = {hit.id.bytes: hit.score for hit in self.hits}
        missing = tuple(UUID(bytes=id_) for id_ in ids if id_ not in known)
        if missing:
            query = replace(self._query, filter=HasId(missing), limit=len(missing), also=())
            known |= {hit.id.bytes: hit.score for hit in await self._search(self._collection, query)}
        return {id_: known[id_] for id_ in ids if id_ in known}


async def compare_by_search(search: Search, collection: str, query: SearchQuery) -> SearchedComparison:
    """Returns the comparison of a query with an index that `search` searches."""
    query = replace(query, mode=SearchMode.VECTOR, with_payload=False)
    return SearchedComparison(search, collection, query, await search(collection, query))
