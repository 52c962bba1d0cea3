"""The parts of a search that the adapters share: checks of vectors, fusion of lists, and ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np

from mnemesh_retrieval.errors import PointInvalid
from mnemesh_retrieval.fusion import fuse
from mnemesh_retrieval.index import Hit, Point, SearchMode, SearchQuery, WordMatch

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


def list_limit(query: SearchQuery) -> int:
    """Returns how many hits each list must have."""
    if query.mode is SearchMode.HYBRID:
        return candidate_query(query).limit
    return query.limit


def candidate_query(query: SearchQuery) -> SearchQuery:
    """Returns the query with the number of candidates as its limit."""
    count = query.candidates or max(50, 4 * query.limit)
    return replace(query, limit=count, candidates=count)


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


def merge_lists(query: SearchQuery, dense: Scored, text: Scored) -> Scored:
    """Returns the fused list in HYBRID mode, else the only list."""
    if query.mode is not SearchMode.HYBRID:
        return dense or text
    lists = ((query.dense_weight, [id_ for id_, _ in dense]), (query.text_weight, [id_ for id_, _ in text]))
    return fuse(lists)[: query.limit]


def hits(chosen: Scored, dense: Scored, text: Scored, payloads: Mapping[UUID, dict[str, Any]]) -> list[Hit]:
    """Returns the chosen points with their payloads and ranks, without those that were deleted meanwhile."""
    by_vector = {id_: (rank, score) for rank, (id_, score) in enumerate(dense, start=1)}
    by_words = {id_: (rank, score) for rank, (id_, score) in enumerate(text, start=1)}
    return [
        Hit(
            id=id_,
            score=score,
            payload=payloads[id_],
            dense_rank=by_vector[id_][0] if id_ in by_vector else None,
            dense_score=by_vector[id_][1] if id_ in by_vector else None,
            text_rank=by_words[id_][0] if id_ in by_words else None,
            text_score=by_words[id_][1] if id_ in by_words else None,
        )
        for id_, score in chosen
        if id_ in payloads
    ]
