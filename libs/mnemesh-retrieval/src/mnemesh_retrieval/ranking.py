"""What every adapter of the index does around its engine's two searches: checks vectors, fuses lists, tells ranks."""

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
    """The vector that an engine is given; None for a point that only words find. PointInvalid."""
    if point.vector is None:
        return None
    if point.vector.shape != (dimension,) or not bool(np.isfinite(point.vector).all()):
        raise PointInvalid(f"point {point.id}: not a vector of {dimension} finite numbers")
    return list(point.vector.tolist()) if point.vector.any() else None


def query_vector(query: SearchQuery, dimension: int) -> list[float] | None:
    """What to look for by likeness; None if the query asks for words only, or its vector is like nothing."""
    if query.mode is SearchMode.TEXT or query.vector is None or not query.vector.any():
        return None
    if query.vector.shape != (dimension,):
        raise PointInvalid(f"the query's vector is not of {dimension} numbers")
    return list(query.vector.tolist())


def reach(query: SearchQuery) -> int:
    """How many hits each list is asked for."""
    if query.mode is SearchMode.HYBRID:
        return offered(query).limit
    return query.limit


def offered(query: SearchQuery) -> SearchQuery:
    """The query with what each list offers as its limit, in every mode."""
    count = query.candidates or max(50, 4 * query.limit)
    return replace(query, limit=count, candidates=count)


def matched(
    id_: UUID,
    score: float,
    asked: Sequence[int],
    forms: Mapping[int, int],
    held: Sequence[int],
    weights: Sequence[float],
) -> WordMatch:
    """What a point that holds these words has of those that were asked for; of a word's forms, what weighs most."""
    wanted = set(asked)
    words: dict[int, float] = {}
    for number, weight in zip(held, weights, strict=True):
        if number in wanted:
            word = forms.get(number, number)
            words[word] = max(words.get(word, 0.0), weight)
    return WordMatch(id_, score, words)


def in_match_order(found: Iterable[WordMatch]) -> list[WordMatch]:
    """Those that have any of the words, best first, ties by id."""
    return sorted((match for match in found if match.score > 0), key=lambda match: (-match.score, match.id))


def in_order(found: Scored) -> Scored:
    """Best first, ties by id."""
    return sorted(found, key=lambda item: (-item[1], item[0]))


def best(query: SearchQuery, dense: Scored, text: Scored) -> Scored:
    """The one list that the two make."""
    if query.mode is not SearchMode.HYBRID:
        return dense or text
    lists = ((query.dense_weight, [id_ for id_, _ in dense]), (query.text_weight, [id_ for id_, _ in text]))
    return fuse(lists)[: query.limit]


def hits(chosen: Scored, dense: Scored, text: Scored, payloads: Mapping[UUID, dict[str, Any]]) -> list[Hit]:
    """The chosen with their payloads and their places in both lists; without those that are gone meanwhile."""
    by_likeness = {id_: (rank, score) for rank, (id_, score) in enumerate(dense, start=1)}
    by_words = {id_: (rank, score) for rank, (id_, score) in enumerate(text, start=1)}
    return [
        Hit(
            id=id_,
            score=score,
            payload=payloads[id_],
            dense_rank=by_likeness[id_][0] if id_ in by_likeness else None,
            dense_score=by_likeness[id_][1] if id_ in by_likeness else None,
            text_rank=by_words[id_][0] if id_ in by_words else None,
            text_score=by_words[id_][1] if id_ in by_words else None,
        )
        for id_, score in chosen
        if id_ in payloads
    ]
