"""The ranking of word hits, the same on every SQL engine: BM25 over a message's words, its neighbours', and its day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from mnemesh_recall.model.search import SearchScope
from mnemesh_recall.store.sql.fulltext.documents import Candidate, WordIndex

BESIDE_SHARE: Final = 0.6
AROUND_SHARE: Final = 0.3
"""What a word counts that stands in a message next to one, and in one further. In the message itself, its speaker's
name and its day it counts whole."""
SATURATION: Final = 1.2
LENGTH_SHARE: Final = 0.3
"""BM25's k1 and b. What people say is short: at the b of .75 that suits pages, the shortest remarks win."""
FEW_HOLDERS: Final = 50
COMMON_SHARE: Final = 1 / 3
MOST_HOLDERS: Final = 1_000
"""A term that more messages have, or more than this share of them where they are not few, is no reason to look at one
of them, if there is another term. It counts for those that another term has found."""
MOST_CANDIDATES: Final = 100
"""So many are ranked, unless more hits are asked for."""


def search(
    index: WordIndex, conn: sa.Connection, scope: SearchScope, terms: Sequence[str], limit: int
) -> list[tuple[str, float]]:
    """See MessageStore.search_words."""
    size, holders = index.counts(conn, scope, terms, MOST_HOLDERS + 1)
    if not holders:
        return []
    weights = {term: rarity(count, size) for term, count in holders.items()}
    tell = telling(holders, weights, size)
    are_few = all(holders[term] <= MOST_HOLDERS for term in tell)
    found = index.candidates(conn, scope, tell, max(MOST_CANDIDATES, 2 * limit), are_few=are_few)
    return ranked(found, weights)[:limit]


def telling(holders: Mapping[str, int], weights: Mapping[str, float], size: int) -> dict[str, float]:
    """The terms that are a reason to look at who has them, with their weights; the rarest where all are common."""
    common = min(MOST_HOLDERS, max(FEW_HOLDERS, int(size * COMMON_SHARE)))
    found = {term: weights[term] for term, count in holders.items() if count <= common}
    if not found:
        rarest = max(weights, key=lambda term: weights[term])
        found = {rarest: weights[rarest]}
    return found


def rarity(count: int, size: int) -> float:
    """BM25's inverse document frequency."""
    return math.log(1 + (max(size, count) - count + 0.5) / (count + 0.5))


def ranked(found: Sequence[Candidate], weights: Mapping[str, float]) -> list[tuple[str, float]]:
    """Best first; of equals, the first given.

    A word counts as much as the message itself has of it, or with what its neighbours have, then no more than it does
    in the best of its holders: a message between two that say a word is not more about it than they are.
    """
    terms = tuple(weights)
    lengths = [_words_of(candidate) for candidate in found]
    usual = max(1.0, sum(lengths) / max(1, len(found)))
    own = [
        _held(f"{candidate.body} {candidate.about}", terms, length / usual)
        for candidate, length in zip(found, lengths, strict=True)
    ]
    most: dict[str, float] = {}
    for held in own:
        for term, worth in held.items():
            most[term] = max(most.get(term, 0.0), worth)
    scored = [
        (candidate.id, _score(held, _lent(candidate, terms, usual), most, weights))
        for candidate, held in zip(found, own, strict=True)
    ]
    return sorted(scored, key=lambda item: -item[1])


def _score(
    own: Mapping[str, float], lent: Mapping[str, float], most: Mapping[str, float], weights: Mapping[str, float]
) -> float:
    # A word beyond the part of a long text that was read: it is there, but tells nothing.
    score = 1e-6
    for term, worth in own.items():
        score += weights[term] * worth
    for term, worth in lent.items():
        # What none of those found holds itself is held by messages that the search leaves out.
        room = most[term] - own.get(term, 0.0) if term in most else worth
        score += weights[term] * min(worth, room)
    return score


def _lent(candidate: Candidate, terms: Sequence[str], usual: float) -> dict[str, float]:
    """What a candidate's neighbours say counts for it."""
    lent: dict[str, float] = {}
    for text, share in ((candidate.beside, BESIDE_SHARE), (candidate.around, AROUND_SHARE)):
        # Two messages, one on either side.
        length = (text.count(" ") + 1) / 2
        for term, worth in _held(text, terms, length / usual).items():
            lent[term] = lent.get(term, 0.0) + share * worth
    return lent


def _held(text: str, terms: Sequence[str], length: float) -> dict[str, float]:
    """What the terms count in a text that is so many times as long as usual."""
    damping = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * length)
    held: dict[str, float] = {}
    words: list[str] | None = None
    for term in terms:
        # Most texts have most terms nowhere, which is soon seen; in what is left words are counted one by one.
        if term not in text:
            continue
        if " " in term:
            times = f" {text} ".count(f" {term} ")
        else:
            words = text.split() if words is None else words
            times = words.count(term)
        if times:
            held[term] = times * (SATURATION + 1) / (times + damping)
    return held


def _words_of(candidate: Candidate) -> float:
    """How many words a message has, by the part of it that was read."""
    beyond = candidate.body_characters / max(1, len(candidate.body))
    return (candidate.body.count(" ") + 1) * beyond
