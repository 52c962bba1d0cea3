"""The parts of a search that the adapters share: checks of points and queries, and ordered lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import numpy as np

from mnemesh_retrieval.errors import PointInvalid, VectorIndexError
from mnemesh_retrieval.index import Point, SearchMode, SearchQuery, WordMatch

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
