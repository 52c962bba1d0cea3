"""The scores of candidates by words: of their own texts, and of what their neighbours share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from mnemesh_retrieval.ranking.constants import RankingConstants
from mnemesh_retrieval.ranking.words import largest_weights, saturation, share, word_score

SECTION: Final = "/"
"""Separates two sections of an analysed text. No word contains it."""
_LEAST: Final = 1e-6
"""The score of a match beyond the part of a long text that was read."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


ReceivedCount = tuple[int, str, int]
"""The number of a section that a text receives from a neighbour, a term, and how often the section has it. The sections
are `asked`, those of `beside`, and those of `around`."""


class TermCounts(NamedTuple):
    """The terms of a query in a text and its neighbours, counted by an index."""

    own: Mapping[str, int]
    """How often each term is in the text, the name of its speaker and its day, in the order of the query."""
    received: Sequence[ReceivedCount]
    length: float
    """The number of words of the text."""
    received_lengths: Sequence[int]
    """The number of words of each section that it receives."""


# A named tuple, because a search makes hundreds: a frozen dataclass takes four times as long to make.
class Candidate(NamedTuple):
    """A text that a search considers, as the full-text index has it: its words are analysed."""

    id: str
    body: str
    body_characters: int
    """The length of the whole body. `body` may be only its beginning."""
    asked: str = ""
    """The words of the question sentences of the message before."""
    beside: str = ""
    """The other words of the message before, and those of the message after, as two sections."""
    around: str = ""
    """The words of the messages at distance two, as two sections."""
    about: str = ""
    """The words of the speaker's name, and those of the day, as two sections."""
    before_id: str | None = None
    """The message before in the dialogue."""
    after_id: str | None = None
    ends_in_question: bool = False
    created_at: datetime = _EPOCH
    has_word: bool = True
    """Whether the index found a term of the query in it or beside it."""
    is_exact: bool = False
    """Whether its text equals the query."""
    counts: TermCounts | None = None
    """The terms of the query, if the index counted them. The texts are then empty, except for `about`."""

    @property
    def follows_question(self) -> bool:
        """Whether the message before asks a question."""
        return bool(self.asked) if self.counts is None else self.counts.received_lengths[0] > 0

    @property
    def speaker(self) -> frozenset[str]:
        """The words of the speaker's name."""
        return frozenset(self.about.partition(SECTION)[0].split())


def word_scores(
    candidates: Sequence[Candidate], rarities: Mapping[str, float], constants: RankingConstants
) -> list[float]:
    """Returns the scores of candidates by words, in their order; 0 for one without a word.

    Args:
        candidates: the candidates.
        rarities: the terms of the query with their rarities; see `ranking.words.rarity`.
        constants: the constants of the ranking.
    """
    terms = tuple(rarities)
    lengths = [_word_count(candidate) for candidate in candidates]
    weigh = _Weights(max(1.0, sum(lengths) / max(1, len(candidates))), constants)
    own = [weigh.own(candidate, terms, length) for candidate, length in zip(candidates, lengths, strict=True)]
    largest = largest_weights(own)
    scores = []
    for candidate, weights in zip(candidates, own, strict=True):
        received = weigh.received(candidate, terms)
        score = word_score(weights, received, largest, rarities) if weights or received else 0.0
        scores.append(max(score, _LEAST) if candidate.has_word else score)
    return scores


class _Weights:
    """Weighs terms in texts of one search, in little time for each text."""

    def __init__(self, average_length: float, constants: RankingConstants) -> None:
        self._saturation = saturation(average_length, constants)
        self._asked = share(-1, constants, is_asked=True)
        self._beside = (share(-1, constants), share(1, constants))
        self._around = (share(-2, constants), share(2, constants))

    def add(
        self, weights: dict[str, float], text: str, terms: Sequence[str], length: float, part: float = 1.0
    ) -> dict[str, float]:
        """Adds a part of the saturated counts of the terms that are in a text of so many words. Returns the sums."""
        words: list[str] | None = None
        for term in terms:
            # Most texts do not contain most terms. A substring test excludes them before words are counted.
            if term not in text:
                continue
            if " " in term:
                count = f" {text} ".count(f" {term} ")
            else:
                if words is None:
                    words = text.split()
                count = words.count(term)
            if count:
                weights[term] = weights.get(term, 0.0) + part * self._saturation(count, length)
        return weights

    def own(self, candidate: Candidate, terms: Sequence[str], length: float) -> dict[str, float]:
        """Returns the weights of the terms in a candidate of so many words."""
        if candidate.counts is None:
            return self.add({}, f"{candidate.body} {candidate.about}", terms, length)
        weigh = self._saturation
        return {term: weigh(count, length) for term, count in candidate.counts.own.items()}

    def received(self, candidate: Candidate, terms: Sequence[str]) -> dict[str, float]:
        """Returns the weights that a candidate receives from its neighbours."""
        received: dict[str, float] = {}
        if candidate.counts is not None:
            self._add_counts(received, candidate.counts)
            return received
        add = self.add
        asked, beside, around = candidate.asked, candidate.beside, candidate.around
        for term in terms:
            if term in beside or term in asked:
                before, _, after = beside.partition(SECTION)
                length = asked_length(asked) + section_length(before)
                if asked:
                    add(received, asked, terms, length, self._asked)
                add(received, before, terms, length, self._beside[0])
                add(received, after, terms, section_length(after), self._beside[1])
                break
        for term in terms:
            if term in around:
                before, _, after = around.partition(SECTION)
                add(received, before, terms, section_length(before), self._around[0])
                add(received, after, terms, section_length(after), self._around[1])
                break
        return received

    def _add_counts(self, weights: dict[str, float], counts: TermCounts) -> None:
        asked, before, *others = counts.received_lengths
        lengths = (asked + before, asked + before, *others)
        shares = (self._asked, *self._beside, *self._around)
        for section, term, count in counts.received:
            weight = shares[section] * self._saturation(count, lengths[section])
            weights[term] = weights.get(term, 0.0) + weight


def asked_length(asked: str) -> int:
    """Returns the number of words of the questions of the message before."""
    return asked.count(" ") + 1 if asked else 0


def section_length(section: str) -> int:
    """Returns the number of words of one of two sections: each word has the space that is towards the other section."""
    return section.count(" ") if len(section) > 1 else 0


def body_length(read: str, characters: int) -> float:
    """Returns the number of words of a body of so many characters, estimated from the part of it that was read."""
    words = read.count(" ") + 1
    return words * characters / len(read) if characters > len(read) > 0 else words


def _word_count(candidate: Candidate) -> float:
    """Returns the number of words of a text."""
    counts = candidate.counts
    return body_length(candidate.body, candidate.body_characters) if counts is None else counts.length
