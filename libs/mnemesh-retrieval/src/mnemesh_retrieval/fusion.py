"""Weighted reciprocal rank fusion of several ranked lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

RANK_CONSTANT = 60
"""The usual constant: the first rank scores 1/61, the tenth 1/70."""


def fuse(lists: Iterable[tuple[float, Sequence[UUID]]]) -> list[tuple[UUID, float]]:
    """Fuses ranked lists, each with its weight.

    Returns:
        Ids with scores, best first, ties by id. The score is the sum of weight / (60 + rank) over the lists.
    """
    scores: dict[UUID, float] = {}
    for weight, ids in lists:
        for rank, id_ in enumerate(ids, start=1):
            scores[id_] = scores.get(id_, 0.0) + weight / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
