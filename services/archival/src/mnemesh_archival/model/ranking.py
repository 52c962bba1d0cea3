"""The ranking of passages by words: those of the passage itself, and a share of those of its neighbours.

Questions often use the words of the turn, or of the piece of a file, before the one that answers them. Neighbours are
looked up when a search ranks and never stored with a passage, so a deleted passage leaves nothing in others.
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

NEIGHBOUR_SHARES: Final = (0.6, 0.3)
"""The share of a word's weight that the adjacent passages receive, and the share of the next ones."""
REACH: Final = len(NEIGHBOUR_SHARES)
_STEPS: Final = tuple((sign * far, share) for far, share in enumerate(NEIGHBOUR_SHARES, start=1) for sign in (-1, 1))
MAX_GAP: Final = timedelta(hours=6)
"""Passages whose times are further apart are not neighbours."""
CANDIDATES: Final = 128
"""The number of best passages from which the rarity of a word is estimated."""
RANKED: Final = 64
"""The number of candidates that are ranked with their neighbours, unless more hits are requested."""

Scored = list[tuple[UUID, float]]


def word_rarities(matches: Sequence[WordMatch], size: int) -> dict[int, float]:
    """Returns BM25's inverse document frequency of each word of the query among `size` passages.

    The engine knows how common a word is in its whole collection. A name that is rare there may be in every second
    passage of this archive, where it does not distinguish passages.
    """
    counts = Counter(word for match in matches for word in match.words)
    size = max(size, len(matches))
    return {word: math.log(1 + (size - count + 0.5) / (count + 0.5)) for word, count in counts.items()}


def best_by_own_words(matches: Sequence[WordMatch], rarity: Mapping[int, float], limit: int) -> list[UUID]:
    """Returns the ids of the best passages by their own words, best first, ties by id."""
    scored = {match.id: _total(match.words, rarity) for match in matches}
    return sorted(scored, key=lambda id_: (-scored[id_], id_))[:limit]


def rank_by_words(
    matches: Sequence[WordMatch],
    rarity: Mapping[int, float],
    positions: Sequence[PassagePosition],
    date_scores: Mapping[UUID, float] = MappingProxyType({}),
) -> Scored:
    """Ranks the passages at these positions, including neighbours of a match.

    The weight of a word in a passage is its own weight plus the shares of its neighbours, limited to the weight in the
    best match: a passage between two that contain a word is not more relevant than they are.

    Args:
        matches: the passages that have at least one word of the query.
        rarity: the rarity of each word; see `word_rarities`.
        positions: the matches and their neighbours.
        date_scores: an additional score of some passages; see `query_dates.date_scores`.

    Returns:
        Ids with scores, best first; ties by the score of the passage's own words, then by id.
    """
    own = {match.id: match.words for match in matches}
    largest: dict[int, float] = {}
    for words in own.values():
        for word, weight in words.items():
            largest[word] = max(largest.get(word, 0.0), weight)
    scores: dict[UUID, tuple[float, float]] = {}
    for id_, shares in _neighbour_shares(own, positions).items():
        words_of_passage = own.get(id_)
        own_score = score = _total(words_of_passage, rarity) if words_of_passage else 0.0
        for word, share in shares.items():
            missing = largest[word] - words_of_passage.get(word, 0.0) if words_of_passage else largest[word]
            score += rarity[word] * (share if share < missing else missing)
        if score:
            scores[id_] = (score + date_scores.get(id_, 0.0), own_score)
    best = sorted(scores.items(), key=lambda item: (-item[1][0], -item[1][1], item[0]))
    return [(id_, score) for id_, (score, _) in best]


def fuse_lists(by_words: Scored, by_vector: Scored, vector_weight: float) -> Scored:
    """Fuses both lists by reciprocal ranks. A rank in the vector list counts `vector_weight`, one by words 1."""
    return fuse([(1.0, [id_ for id_, _ in by_words]), (vector_weight, [id_ for id_, _ in by_vector])])


def _total(words: Mapping[int, float], rarity: Mapping[int, float]) -> float:
    total = 0.0
    for word, weight in words.items():
        total += weight * rarity[word]
    return total


def _neighbour_shares(
    own: Mapping[UUID, Mapping[int, float]], positions: Sequence[PassagePosition]
) -> dict[UUID, dict[int, float]]:
    strands: dict[tuple[str, str], dict[int, PassagePosition]] = defaultdict(dict)
    for each in positions:
        strands[each.archive_id, each.strand][each.position] = each
    shares: dict[UUID, dict[int, float]] = {each.point_id: {} for each in positions}
    for strand in strands.values():
        for position, each in strand.items():
            words = own.get(each.point_id)
            if words is None:
                continue
            for step, share in _STEPS:
                neighbour = strand.get(position + step)
                if neighbour is not None and abs(neighbour.created_at - each.created_at) <= MAX_GAP:
                    received = shares[neighbour.point_id]
                    for word, weight in words.items():
                        received[word] = received.get(word, 0.0) + share * weight
    return shares
