"""The ranking of passages by words: what each holds itself, and a share of what those around it hold.

A turn of a conversation, or a piece of a file, is often asked for in the words of the one before it. Nothing of a
neighbour is kept with a passage, so that what is deleted is gone; neighbours are looked up when a search ranks.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Final
from uuid import UUID

from mnemesh_retrieval.fusion import fuse
from mnemesh_retrieval.index import WordMatch

from mnemesh_archival.model.passages import PassagePosition

SHARES: Final = (0.6, 0.3)
"""What a word counts that is held by the passage next to one, and by the one beyond."""
REACH: Final = len(SHARES)
STEPS: Final = tuple((sign * far, share) for far, share in enumerate(SHARES, start=1) for sign in (-1, 1))
SESSION: Final = timedelta(hours=6)
"""Passages whose times are further apart than this are of different occasions."""
COUNTED: Final = 128
"""From so many of the best passages it is judged how common a word is where the search looks."""
RANKED: Final = 64
"""So many of them, with their neighbours, are ranked, unless more hits are asked for."""

Scored = list[tuple[UUID, float]]


def rarities(found: Sequence[WordMatch], size: int) -> dict[int, float]:
    """What each word of the query tells among `size` passages: BM25's inverse document frequency.

    The engine knows how common a word is in its whole collection. A name that is rare there may be in every second
    passage of this archive, and a word that nobody else uses tells nothing about which of its holders is meant.
    """
    holders = Counter(word for match in found for word in match.words)
    size = max(size, len(found))
    return {word: math.log(1 + (size - count + 0.5) / (count + 0.5)) for word, count in holders.items()}


def strongest(found: Sequence[WordMatch], rarity: Mapping[int, float], limit: int) -> list[UUID]:
    """The best by their own words."""
    scored = {match.id: _total(match.words, rarity) for match in found}
    return sorted(scored, key=lambda id_: (-scored[id_], id_))[:limit]


def by_words(
    found: Sequence[WordMatch],
    rarity: Mapping[int, float],
    places: Sequence[PassagePosition],
    days: Mapping[UUID, float] = MappingProxyType({}),
) -> Scored:
    """The passages at these places, best first, those beside a match included; ties by own words, then by id.

    `days` is what the day of a passage counts for it.

    A word counts as much as the passage itself has of it, or with what its neighbours have, then no more than it
    does in the best of its holders: a passage between two that say a word is not more about it than they are.
    """
    own = {match.id: match.words for match in found}
    most: dict[int, float] = {}
    for words in own.values():
        for word, weight in words.items():
            most[word] = max(most.get(word, 0.0), weight)
    scores: dict[UUID, tuple[float, float]] = {}
    for id_, around in _lent(own, places).items():
        held = own.get(id_)
        mine = score = _total(held, rarity) if held else 0.0
        for word, lent in around.items():
            room = most[word] - held.get(word, 0.0) if held else most[word]
            score += rarity[word] * (lent if lent < room else room)
        if score:
            scores[id_] = (score + days.get(id_, 0.0), mine)
    best = sorted(scores.items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))
    return [(id_, score) for id_, (score, _) in best]


def fused(words: Scored, meaning: Scored, weight: float) -> Scored:
    """One list of both, by reciprocal ranks; `weight` is what a rank by meaning counts."""
    return fuse([(1.0, [id_ for id_, _ in words]), (weight, [id_ for id_, _ in meaning])])


def _total(words: Mapping[int, float], rarity: Mapping[int, float]) -> float:
    total = 0.0
    for word, weight in words.items():
        total += weight * rarity[word]
    return total


def _lent(own: Mapping[UUID, Mapping[int, float]], places: Sequence[PassagePosition]) -> dict[UUID, dict[int, float]]:
    """For each place, what its neighbours' words count there."""
    strands: dict[tuple[str, str], dict[int, PassagePosition]] = defaultdict(dict)
    for place in places:
        strands[place.archive_id, place.strand][place.position] = place
    lent: dict[UUID, dict[int, float]] = {place.point_id: {} for place in places}
    for strand in strands.values():
        for position, place in strand.items():
            held = own.get(place.point_id)
            if held is None:
                continue
            for step, share in STEPS:
                other = strand.get(position + step)
                if other is not None and abs(other.created_at - place.created_at) <= SESSION:
                    around = lent[other.point_id]
                    for word, weight in held.items():
                        around[word] = around.get(word, 0.0) + share * weight
    return lent
