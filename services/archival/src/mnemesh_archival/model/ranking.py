"""The ranking of passages: what a passage, its neighbours in a dialogue or document, and its embedder contribute.

The rules and constants are those of mnemesh_retrieval.ranking. Neighbours are looked up when a search ranks and never
stored with a passage, so a deleted passage leaves nothing in others.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import Final
from uuid import UUID

import numpy as np
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_text
from mnemesh_retrieval.index import SearchMode, WordMatch
from mnemesh_retrieval.ranking.scores import (
    Bools,
    Candidate,
    Floats,
    Ranked,
    RankingConstants,
    Strands,
    fuse_scores,
    limited,
    normalized,
    rarity,
    time_factor,
)
from mnemesh_retrieval.time_expressions.resolver import TimeRange
from mnemesh_types.archival import PassageHit

from mnemesh_archival.model.passages import LINKED, Asking, Continuity, PassageFilter, PassagePosition, validate_filter

MAX_QUERY_CHARS: Final = 10_000
MAX_FURTHER_QUERIES: Final = 9
MAX_HITS: Final = 100
DEFAULT_HITS: Final = 10
MAX_AROUND: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageSearch:
    query: str
    """Blank for the newest passages."""
    further_queries: tuple[str, ...] = ()
    """Other wordings; blank ones are ignored."""
    kind: SearchMode = SearchMode.HYBRID
    filter: PassageFilter = field(default_factory=PassageFilter)
    limit: int = 0
    """The largest number of hits; 0 for the default."""
    offset: int = 0
    """The number of best hits to leave out, because earlier calls returned them."""
    before: int = 0
    """The number of passages of the same dialogue or document to return before each hit, and after it."""
    after: int = 0
    zone: tzinfo = UTC
    reference_time: datetime | None = None
    """The time from which expressions such as "last week" are resolved; None recognises complete dates only."""
    with_embedding: bool = False
    rerank: bool | None = None
    """Whether the reranker orders the best candidates; None means the default of the service."""

    @property
    def queries(self) -> list[str]:
        """The queries that are not blank, each once."""
        return list(dict.fromkeys(each for each in (self.query, *self.further_queries) if each.strip()))


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The hits of a search from its offset on, best first."""

    hits: tuple[PassageHit, ...]
    degraded: bool = False
    """True if an embedder was unavailable, so that a hybrid search used words only, or if the index was incomplete."""
    time_ranges: tuple[TimeRange, ...] = ()
    """The ranges of the expressions of time in the queries."""
    reranked: bool = False


def validate_search(search: PassageSearch) -> PassageSearch:
    """Returns the search with its default limit, and a valid filter.

    Raises:
        InvalidArgument: a query, the filter or a number is not valid.
    """
    validate_query(search.query, "query")
    if len(search.further_queries) > MAX_FURTHER_QUERIES:
        raise InvalidArgument(
            f"further_queries must have at most {MAX_FURTHER_QUERIES} values.", field="further_queries"
        )
    for index, query in enumerate(search.further_queries):
        validate_query(query, f"further_queries[{index}]")
    for value, name in ((search.before, "passages_before"), (search.after, "passages_after")):
        if not 0 <= value <= MAX_AROUND:
            raise InvalidArgument(f"{name} must be between 0 and {MAX_AROUND}.", field=name)
    return replace(search, filter=validate_filter(search.filter), limit=validate_limit(search.limit))


def validate_query(text: str, field: str) -> str:
    """Returns the query. Raises InvalidArgument if it is too long or has a NUL character."""
    return require_text(text, field, max_chars=MAX_QUERY_CHARS)


def validate_limit(limit: int) -> int:
    """Returns the number of hits to return, with 0 replaced by the default.

    Raises:
        InvalidArgument: the limit is negative or too large.
    """
    if not 0 <= limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    return limit or DEFAULT_HITS


def equal_to(query: str, texts: Mapping[UUID, str]) -> list[UUID]:
    """Returns the texts that equal a query most closely: as they are, else apart from case, else in their words."""
    ways: Sequence[Callable[[str], str]] = (str.strip, lambda text: " ".join(text.casefold().split()), normalized)
    for way in ways:
        wanted = way(query)
        if wanted and (found := [id_ for id_, text in texts.items() if way(text) == wanted]):
            return sorted(found)
    return []


CANDIDATES: Final = 128
"""The number of best passages from which the rarity of a word is estimated."""
RANKED: Final = 64
"""The number of best passages by their own words that are ranked with their neighbours, unless a search wants more."""
NEAREST: Final = 24
"""The number of most similar passages that are ranked with their neighbours, unless a search wants more."""
COMPARED: Final = 48
"""The number of best passages by words whose similarities count. Those behind them cannot become the best by it."""


_IS_SPOKEN: Final = np.array([continuity.is_spoken for continuity in Continuity])


@dataclass(frozen=True, slots=True)
class Likeness:
    """The similarities of passages to a query, by one embedder."""

    weight: float
    """The weight of similarities, where words weigh 1."""
    least: float
    """A passage without a word of the query whose similarity is not above this does not match."""
    similarities: Mapping[UUID, float]


def word_rarities(matches: Sequence[WordMatch], size: int) -> dict[int, float]:
    """Returns BM25's inverse document frequency of each word of the query among `size` passages.

    The engine knows how common a word is in its whole collection. A name that is rare there may be in every second
    passage of this archive, where it does not distinguish passages.
    """
    counts = Counter(word for match in matches for word in match.words)
    return {word: rarity(count, max(size, len(matches))) for word, count in counts.items()}


def candidates(depth: int) -> int:
    """Returns the number of candidates by words, and of those by similarity, for a number of hits."""
    return max(CANDIDATES, 4 * depth)


def best_by_own_words(matches: Sequence[WordMatch], rarities: Mapping[int, float], limit: int) -> list[UUID]:
    """Returns the ids of the best passages by their own words, best first, ties by id."""
    scored = sorted((-sum(weight * rarities[word] for word, weight in each.words.items()), each.id) for each in matches)
    return [id_ for _, id_ in scored[:limit]]


class PassageRanking:
    """The ranking of one query: passages at positions, as rows of arrays."""

    def __init__(
        self,
        positions: Sequence[PassagePosition],
        matches: Iterable[WordMatch],
        rarities: Mapping[int, float],
        constants: RankingConstants,
    ) -> None:
        """Takes the candidates.

        Args:
            positions: the candidates, and their neighbours in dialogues and documents.
            matches: the passages that have at least one word of the query; those without a position are ignored.
            rarities: the rarity of each word; see `word_rarities`.
            constants: the constants of the ranking.
        """
        self._constants = constants
        self._positions = positions
        self._ids = [each.point_id for each in positions]
        self._rows = {id_: row for row, id_ in enumerate(self._ids)}
        self._columns = {word: column for column, word in enumerate(rarities)}
        self._rarities = np.fromiter(rarities.values(), np.float64, len(rarities))
        self._own = np.zeros((len(positions), len(rarities)))
        for match in matches:
            row = self._rows.get(match.id)
            if row is not None:
                for word, weight in match.words.items():
                    self._own[row, self._columns[word]] = weight
        self._has_own = self._own.any(axis=1)
        self._strands = _strands(positions, constants)
        self._asking = np.fromiter((each.asking for each in positions), np.int64, len(positions))
        self._is_spoken = _IS_SPOKEN[[each.continuity for each in positions]]
        self._factors = np.ones(len(positions))
        self._by_words = np.zeros(len(positions))

    def score_words(
        self,
        asked: Mapping[UUID, Collection[int]],
        words_of: Callable[[str], Collection[int]],
        date_scores: Mapping[UUID, float],
        named_times: Sequence[TimeRange],
    ) -> None:
        """Scores the passages by words, their own and those that they receive, and computes their factors.

        The weight of a word in a passage is limited by its weight in the best match; see `ranking.words.limited`.

        Args:
            asked: the words of the query in the question sentences of passages.
            words_of: returns the words of the query that a text has.
            date_scores: an additional score of passages that have words; see `query_dates.date_scores`.
            named_times: the times that the query names.
        """
        lent, is_named = self._lent(words_of)
        in_questions = np.zeros(self._own.shape, np.bool_)
        for id_, words in asked.items():
            if (row := self._rows.get(id_)) is not None:
                in_questions[row, [self._columns[word] for word in words if word in self._columns]] = True
        received = self._strands.received_words(lent, in_questions, self._constants)
        largest = self._own.max(axis=0, initial=0.0)
        self._by_words = (self._own + limited(received, self._own, largest)) @ self._rarities
        for id_, score in date_scores.items():
            if self._by_words[row := self._rows[id_]] > 0:
                self._by_words[row] += score
        self._compute_factors(is_named, named_times)

    def receivers(self) -> list[UUID]:
        """Returns the passages that have only words that they receive."""
        return [self._ids[row] for row in np.flatnonzero((self._by_words > 0) & ~self._has_own)]

    def exclude(self, ids: Iterable[UUID]) -> None:
        """Excludes passages that do not match the filter of the search."""
        self._by_words[[self._rows[id_] for id_ in ids]] = 0.0

    def compared(self, nearest: Iterable[UUID], depth: int) -> list[UUID]:
        """Returns the passages whose similarities count: the best by words, the nearest, and those beside them."""
        rows = {self._rows[id_] for id_ in nearest if id_ in self._rows}
        rows.update(self._best(self._by_words * self._factors, max(depth, COMPARED)))
        beside = [self._strands.by_distance[step][list(rows)] for step in (-1, 1)] if rows else []
        rows.update(int(row) for some in beside for row in some if row >= 0)
        return [self._ids[row] for row in sorted(rows)]

    def rank(self, likenesses: Sequence[Likeness], exact: Collection[UUID], depth: int) -> list[Ranked[UUID]]:
        """Returns the passages that match by words or by similarity, or equal the query, best first.

        The similarities of different embedders have no common scale: those of each count relative to its best one.

        Args:
            likenesses: the similarities of each embedder.
            exact: the passages that equal the query. One that has no position is left out.
            depth: the number of hits.
        """
        shared, relative, weight = self._similarities(likenesses)
        words = self._best(self._by_words * self._factors, max(depth, self._constants.word_candidates))
        similar = self._best(relative * self._factors, max(depth, self._constants.similarity_candidates))
        equal = {self._rows[id_] for id_ in exact if id_ in self._rows}
        rows = list(dict.fromkeys((*words, *similar, *equal)))
        scores = (scores[rows].tolist() for scores in (self._by_words, relative, self._factors))
        # Rows are compared faster than the ids that stand for them.
        candidates = [
            Candidate(row, by_words, similarity, factor, row in equal)
            for row, by_words, similarity, factor in zip(rows, *scores, strict=True)
        ]
        found = fuse_scores(candidates, weight, self._constants, depth=depth)
        similarities = shared.tolist()
        return [
            Ranked(
                self._ids[row],
                score,
                text_score,
                text_rank,
                None if vector_rank is None else similarities[row],
                vector_rank,
                is_exact,
            )
            for row, score, text_score, text_rank, _, vector_rank, is_exact, _ in found
        ]

    def _lent(self, words_of: Callable[[str], Collection[int]]) -> tuple[Floats, Bools]:
        """Returns the words that each passage lends, and whether the query names its speaker.

        The name of a speaker belongs to its own passage.
        """
        lent = self._own.copy()
        is_named = np.zeros(len(self._positions), np.bool_)
        said: dict[str, list[int]] = {}
        for row in np.flatnonzero(self._is_spoken).tolist():
            said.setdefault(self._positions[row].speaker, []).append(row)
        for speaker, rows in said.items():
            words = words_of(speaker) if speaker else ()
            if columns := [self._columns[word] for word in words if word in self._columns]:
                is_named[rows] = True
                lent[np.ix_(rows, columns)] = 0.0
        return lent, is_named

    def _compute_factors(self, is_named: Bools, named_times: Sequence[TimeRange]) -> None:
        self._factors[is_named] *= self._constants.speaker_factor
        self._factors[self._is_spoken & (self._asking == Asking.AT_END)] *= self._constants.question_factor
        if named_times:
            self._factors *= [time_factor(each.created_at, named_times, self._constants) for each in self._positions]

    def _similarities(self, likenesses: Sequence[Likeness]) -> tuple[Floats, Floats, float]:
        """Returns the shared similarities, the same relative to the best of each embedder, and the largest weight.

        A passage without words has none unless its own similarity or that of one beside it is above the least.
        """
        shared, relative = np.zeros(len(self._ids)), np.zeros(len(self._ids))
        weight = max((each.weight for each in likenesses), default=0.0)
        for likeness in likenesses:
            known = [
                (row, value) for id_, value in likeness.similarities.items() if (row := self._rows.get(id_, -1)) >= 0
            ]
            rows = [row for row, _ in known]
            own = np.zeros(len(self._ids))
            own[rows] = [value for _, value in known]
            is_known = np.zeros(len(self._ids), np.bool_)
            is_known[rows] = True
            is_like = self._strands.largest_nearby(np.maximum(own, 0.0)) > likeness.least
            value = self._strands.shared_similarities(own, self._asking > 0, self._constants)
            value = np.where(is_known & (is_like | (self._by_words > 0)), np.maximum(value, 0.0), 0.0)
            if (best := np.max(value, initial=0.0)) > 0 and weight > 0:
                relative += value / best * (likeness.weight / weight)
                shared += value
        return shared, relative, weight

    def _best(self, scores: Floats, count: int) -> list[int]:
        """Returns the rows of the best scores above 0, best first, ties by their own words and then by id."""
        rows = np.flatnonzero(scores > 0)
        if len(rows) > count:
            least = np.partition(scores[rows], -count)[-count]
            rows = rows[scores[rows] >= least]
        own = (self._own[rows] @ self._rarities).tolist()
        keys = zip((-scores[rows]).tolist(), own, rows.tolist(), strict=True)
        ordered = sorted((score, -words, self._ids[row], row) for score, words, row in keys)
        return [row for *_, row in ordered[:count]]


def _strands(positions: Sequence[PassagePosition], constants: RankingConstants) -> Strands:
    """Returns the neighbours of passages. One that stands alone is a strand of its own."""
    numbers: dict[tuple[str, str, int], int] = {}
    strands = [
        numbers.setdefault((each.archive_id, each.strand, each.continuity), len(numbers))
        if each.continuity in LINKED
        else -1 - row
        for row, each in enumerate(positions)
    ]
    return Strands.of(
        strands, [each.position for each in positions], [each.created_at.timestamp() for each in positions], constants
    )


_NAMES: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_MONTHS: Final = {name: number for number, name in enumerate(_NAMES, start=1)}
_WORD: Final = re.compile(r"[^\W_]+")
_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_DAY: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?")
_VERBS: Final = frozenset({"may", "march"})
"""Months that are also verbs: they count only if capitalized."""

DatePart = tuple[str, int]
"""A unit and its number, such as ('month', 5)."""


def date_parts(query: str) -> tuple[DatePart, ...]:
    """Returns the months and years in a query, and its days if it names a month."""
    words = _WORD.findall(query)
    months = [
        ("month", month)
        for word in words
        if (month := _MONTHS.get(word.lower())) and not (word in _VERBS and word.islower())
    ]
    years = [("year", int(word)) for word in words if _YEAR.fullmatch(word)]
    days = [("day", int(found[1])) for word in words if months and (found := _DAY.fullmatch(word.lower()))]
    return tuple(dict.fromkeys((*days, *months, *years)))


def date_scores(query: str, positions: Iterable[PassagePosition]) -> dict[UUID, float]:
    """Returns a score for each passage whose date has parts that the query names. Rarer parts score higher."""
    parts = date_parts(query)
    if not parts:
        return {}
    held = {position.point_id: frozenset(parts).intersection(_parts_of(position.created_at)) for position in positions}
    counts = {part: sum(part in of_passage for of_passage in held.values()) for part in parts}
    rarity = {part: math.log(1 + (len(held) - count + 0.5) / (count + 0.5)) for part, count in counts.items()}
    return {point: sum(rarity[part] for part in of_passage) for point, of_passage in held.items() if of_passage}


def _parts_of(time: datetime) -> Iterator[DatePart]:
    day = time.astimezone(UTC)
    yield from (("day", day.day), ("month", day.month), ("year", day.year))
