"""The ranking of full-text hits on every SQL engine: BM25 over a message, its neighbours, its speaker and its day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.fulltext.documents import Candidate, FulltextIndex

BESIDE_SHARE: Final = 0.6
AROUND_SHARE: Final = 0.3
"""The weights of a word in an adjacent message and in one at distance two. In the message itself, its speaker and its
day the weight is 1."""
SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.3
"""BM25's k1 and b. Messages are short: with b = 0.75, which suits pages, the shortest messages would win."""
FEW_HOLDERS: Final = 50
COMMON_SHARE: Final = 1 / 3
MOST_HOLDERS: Final = 1_000
"""A term that is in more messages, or in a larger share of more than a few messages, selects no candidates if there is
another term. It still counts for the candidates of other terms."""
MOST_CANDIDATES: Final = 100
"""The number of ranked candidates, unless a search asks for more hits."""


def search(
    index: FulltextIndex,
    conn: sa.Connection,
    organization_id: str,
    scope: SearchScope,
    terms: Sequence[str],
    limit: int,
) -> list[tuple[str, float]]:
    """See MessageStore.search_fulltext."""
    size, holders = index.counts(conn, organization_id, scope, terms, MOST_HOLDERS + 1)
    if not holders:
        return []
    weights = {term: rarity(count, size) for term, count in holders.items()}
    selected = selective_terms(holders, weights, size)
    are_few = all(holders[term] <= MOST_HOLDERS for term in selected)
    found = index.candidates(conn, organization_id, scope, selected, max(MOST_CANDIDATES, 2 * limit), are_few=are_few)
    return ranked(found, weights)[:limit]


def selective_terms(holders: Mapping[str, int], weights: Mapping[str, float], size: int) -> dict[str, float]:
    """Returns the terms that select candidates, with their weights: the rarest one if all are common."""
    common = min(MOST_HOLDERS, max(FEW_HOLDERS, int(size * COMMON_SHARE)))
    found = {term: weights[term] for term, count in holders.items() if count <= common}
    if not found:
        rarest = max(weights, key=lambda term: weights[term])
        found = {rarest: weights[rarest]}
    return found


def rarity(count: int, size: int) -> float:
    """Returns BM25's inverse document frequency of a term in `count` of `size` messages."""
    return math.log(1 + (max(size, count) - count + 0.5) / (count + 0.5))


def ranked(found: Sequence[Candidate], weights: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the ids and scores of the candidates, best first. Candidates with equal scores keep their order.

    A word counts for its occurrences in the message and, with a lower weight, in its neighbours. The sum is limited to
    the count of the best message that contains the word: a message between two others with a word is not more about
    it than they are.
    """
    terms = tuple(weights)
    lengths = [_word_count(candidate) for candidate in found]
    average_length = max(1.0, sum(lengths) / max(1, len(found)))
    own = [
        _own_counts(f"{candidate.body} {candidate.about}", terms, length / average_length)
        for candidate, length in zip(found, lengths, strict=True)
    ]
    most: dict[str, float] = {}
    for counts in own:
        for term, worth in counts.items():
            most[term] = max(most.get(term, 0.0), worth)
    scored = [
        (candidate.id, _score(counts, _neighbour_counts(candidate, terms, average_length), most, weights))
        for candidate, counts in zip(found, own, strict=True)
    ]
    return sorted(scored, key=lambda item: -item[1])


def _score(
    own: Mapping[str, float], neighbours: Mapping[str, float], most: Mapping[str, float], weights: Mapping[str, float]
) -> float:
    # A match beyond the part of a long text that was read scores just above zero.
    score = 1e-6
    for term, worth in own.items():
        score += weights[term] * worth
    for term, worth in neighbours.items():
        # A word that is in no candidate itself is only in messages that the search excludes.
        limit = most[term] - own.get(term, 0.0) if term in most else worth
        score += weights[term] * min(worth, limit)
    return score


def _neighbour_counts(candidate: Candidate, terms: Sequence[str], average_length: float) -> dict[str, float]:
    """Returns the counts of the terms in the neighbours of a candidate, times their weights."""
    counts: dict[str, float] = {}
    for text, share in ((candidate.beside, BESIDE_SHARE), (candidate.around, AROUND_SHARE)):
        # Two messages, one on either side.
        length = (text.count(" ") + 1) / 2
        for term, worth in _own_counts(text, terms, length / average_length).items():
            counts[term] = counts.get(term, 0.0) + share * worth
    return counts


def _own_counts(text: str, terms: Sequence[str], length: float) -> dict[str, float]:
    """Returns the saturated counts of the terms in a text. `length` is relative to the average length."""
    damping = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length)
    counts: dict[str, float] = {}
    words: list[str] | None = None
    for term in terms:
        # Most texts do not contain most terms. A substring test excludes them before words are counted.
        if term not in text:
            continue
        if " " in term:
            times = f" {text} ".count(f" {term} ")
        else:
            words = text.split() if words is None else words
            times = words.count(term)
        if times:
            counts[term] = times * (SATURATION + 1) / (times + damping)
    return counts


def _word_count(candidate: Candidate) -> float:
    """Returns the number of words of a message, estimated from the part of it that was read."""
    beyond = candidate.body_characters / max(1, len(candidate.body))
    return (candidate.body.count(" ") + 1) * beyond
