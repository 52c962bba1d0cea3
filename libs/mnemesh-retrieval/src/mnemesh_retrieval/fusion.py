"""Weighted reciprocal rank fusion: one order out of several ranked lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

RANK_CONSTANT = 60
"""Softens the first ranks, as is common: the first is worth 1/61, the tenth 1/70."""


def fuse(lists: Iterable[tuple[float, Sequence[UUID]]]) -> list[tuple[UUID, float]]:
    """Fuse ranked lists, each with its weight. Best first, ties by id; the score is the sum of weight / (60 + rank)."""
    scores: dict[UUID, float] = {}
    for weight, ids in lists:
        for rank, id_ in enumerate(ids, start=1):
            scores[id_] = scores.get(id_, 0.0) + weight / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
