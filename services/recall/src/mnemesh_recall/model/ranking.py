"""The ranking of messages: candidates, their scores by words and by similarity, factors, and their fusion."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from mnemesh_retrieval.ranking.scores import Candidate as Scored
from mnemesh_retrieval.ranking.scores import (
    Ranked,
    RankingConstants,
    factor,
    fuse_scores,
    limited,
    share,
    shared_similarity,
    time_factor,
)
from mnemesh_retrieval.time_expressions.resolver import TimeRange

Array = npt.NDArray[Any]
Key = bytes
"""The UUID of a message id: sixteen bytes."""

ID_PREFIX: Final = "message-"
"""The part of a message id before its UUID."""
SECTION: Final = "/"
"""Separates two sections of an analysed text. No word contains it."""
RECEIVED_SECTIONS: Final = 5
"""The sections of words that a text receives: the questions of the message before, its other words, those of the
message after, and those of the messages at distance two before and after."""
EPOCH: Final = datetime.fromtimestamp(0, UTC)
_NONE: Final = b""


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
    created_at: datetime = EPOCH
    has_word: bool = True
    """True if the index found a term of the query in this text or in a neighbour."""
    is_exact: bool = False
    """True if the text equals the query."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates as arrays with a row for each, in the order of preference, such as newest first."""

    keys: Sequence[Key]
    before: Sequence[Key]
    """The message before in the dialogue; empty if there is none."""
    after: Sequence[Key]
    abouts: Sequence[str]
    """See Candidate.about."""
    asks: Array
    """True for a text that ends in a question."""
    times: Array
    """The creation times in microseconds since 1970."""
    has_word: Array
    """True if the index found a term of the query in the text or in a neighbour."""
    is_exact: Array
    """True if the text equals the query."""
    lengths: Array
    """The numbers of words of the texts."""
    received_lengths: Array
    """The numbers of words of each section that the texts receive: a row for each text, a column for each section."""
    own: Array
    """How often each term of the query is in the text, the name of its speaker and its day: a column for each term."""
    received: Array
    """How often each term is in what the neighbours share: by text, section and term."""

    @classmethod
    def of(cls, found: Sequence[Candidate], terms: Sequence[str]) -> "Candidates":
        """Counts the terms of a query in the texts of candidates."""
        own = np.zeros((len(found), len(terms)))
        received = np.zeros((len(found), RECEIVED_SECTIONS, len(terms)))
        received_lengths = np.zeros((len(found), RECEIVED_SECTIONS))
        for row, each in enumerate(found):
            _count(own[row], f"{each.body} {each.about}", terms)
            before, _, after = each.beside.partition(SECTION)
            second_before, _, second_after = each.around.partition(SECTION)
            received_lengths[row, 0] = asked_length(each.asked)
            for number, section in enumerate((before, after, second_before, second_after), start=1):
                received_lengths[row, number] = section_length(section)
            if any(term in text for text in (each.asked, each.beside, each.around) for term in terms):
                for number, section in enumerate((each.asked, before, after, second_before, second_after)):
                    _count(received[row, number], section, terms)
        return cls(
            keys=[key_of(each.id) for each in found],
            before=[key_of(each.before_id) for each in found],
            after=[key_of(each.after_id) for each in found],
            abouts=[each.about for each in found],
            asks=np.array([each.ends_in_question for each in found], np.bool_),
            times=np.array([microseconds(each.created_at) for each in found], np.int64),
            has_word=np.array([each.has_word for each in found], np.bool_),
            is_exact=np.array([each.is_exact for each in found], np.bool_),
            lengths=np.array([body_length(each.body, each.body_characters) for each in found], np.float64),
            received_lengths=received_lengths,
            own=own,
            received=received,
        )

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys)

    @property
    def follow_questions(self) -> Array:
        """Whether the message before each asks a question."""
        follow: Array = self.received_lengths[:, 0] > 0
        return follow

    def chosen(self, mask: Array) -> "Candidates":
        rows = np.flatnonzero(mask).tolist()
        if len(rows) == len(self):
            return self

        def of(values: Any) -> Any:
            return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]

        return Candidates(*(of(getattr(self, each.name)) for each in fields(self)))

    def joined(self, other: "Candidates") -> "Candidates":
        """Returns these candidates and then the others. The terms must be the same."""
        if not len(other):
            return self

        def of(first: Any, second: Any) -> Any:
            return np.concatenate([first, second]) if isinstance(first, np.ndarray) else [*first, *second]

        return Candidates(*(of(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)))


def key_of(id_: str | None) -> Key:
    """Returns the UUID of a message id; empty for none."""
    return _NONE if id_ is None else bytes.fromhex(id_.partition("-")[2].replace("-", ""))


def id_of(key: Key) -> str:
    """Returns the message id of a UUID."""
    text = key.hex()
    return f"{ID_PREFIX}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def microseconds(at: datetime) -> int:
    """Returns the microseconds from 1970 to a time."""
    return (at - EPOCH) // timedelta(microseconds=1)


def time_of(at: int) -> datetime:
    """Returns the time that is so many microseconds after 1970."""
    return EPOCH + timedelta(microseconds=at)


def asked_length(asked: str) -> int:
    """Returns the number of words of the questions of the message before."""
    return asked.count(" ") + 1 if asked else 0


def section_length(section: str) -> int:
    """Returns the number of words of one of two sections: each word has the space that is towards the other section."""
    return section.count(" ") if len(section) > 1 else 0


def body_length(read: str, characters: int) -> int:
    """Returns the number of words of a body of so many characters, estimated from the part of it that was read."""
    words = read.count(" ") + 1
    return round(words * characters / len(read)) if characters > len(read) > 0 else words


def _count(counts: Array, text: str, terms: Sequence[str]) -> None:
    """Counts terms in an analysed text."""
    words: list[str] | None = None
    for column, term in enumerate(terms):
        # Most texts do not contain most terms. A substring test excludes them before words are counted.
        if term not in text:
            continue
        if " " in term:
            counts[column] = f" {text} ".count(f" {term} ")
        else:
            words = text.split() if words is None else words
            counts[column] = words.count(term)


Floats = npt.NDArray[np.float64]
_LEAST: Final = 1e-6
"""The score of a match beyond the part of a long text that was read."""


def word_scores(candidates: Candidates, rarities: Mapping[str, float], constants: RankingConstants) -> Floats:
    """Returns the scores of candidates by words, in their order; 0 for one without a word.

    What a text receives is limited; see `ranking.words.limited`. A word that no text has has no limit: the search
    excludes its holders.

    Args:
        candidates: the candidates, with a column for each term of `rarities`.
        rarities: the terms of the query with their rarities; see `ranking.words.rarity`.
        constants: the constants of the ranking.
    """
    lengths = candidates.lengths[:, None]
    average = max(1.0, float(lengths.sum()) / max(1, len(lengths)))
    own = _weights(candidates.own, lengths, average, constants)
    largest = own.max(axis=0, initial=0.0)
    largest[largest == 0] = np.inf
    received = limited(_received(candidates, average, constants), own, largest)
    scores: Floats = (own + received) @ np.array(list(rarities.values()), np.float64)
    return np.where(candidates.has_word, np.maximum(scores, _LEAST), scores)


def _received(candidates: Candidates, average: float, constants: RankingConstants) -> Floats:
    """Returns the weights that texts receive from their neighbours, with a column for each term."""
    lengths = candidates.received_lengths.astype(np.float64)
    # Questions and the other words of the message before are parts of one text.
    lengths[:, :2] = lengths[:, :2].sum(axis=1, keepdims=True)
    shares = np.array(
        [share(-1, constants, is_asked=True), *(share(distance, constants) for distance in (-1, 1, -2, 2))]
    )
    weights = _weights(candidates.received, lengths[:, :, None], average, constants)
    total: Floats = (weights * shares[None, :, None]).sum(axis=1)
    return total


def _weights(counts: npt.NDArray[Any], lengths: Floats, average: float, constants: RankingConstants) -> Floats:
    """Returns the weights of terms from their counts, and the lengths of texts; see `ranking.words.saturation`."""
    least = constants.saturation * (1 - constants.length_share)
    slope = constants.saturation * constants.length_share / average
    found = np.zeros(counts.shape)
    np.divide(counts * (constants.saturation + 1), counts + (least + slope * lengths), out=found, where=counts > 0)
    return found


def rank(
    candidates: Candidates,
    rarities: Mapping[str, float],
    similarities: Mapping[Key, float],
    similarity_weight: float,
    named_times: Sequence[TimeRange],
    constants: RankingConstants,
    *,
    depth: int,
    least_similarity: float = 0.0,
) -> list[Ranked[Key]]:
    """Returns the candidates that match by words or by similarity, best first.

    Args:
        candidates: the candidates; of two with equal scores the earlier one comes first.
        rarities: the terms of the query with their rarities. Without terms, only similarities count.
        similarities: the similarities of the candidates and of their neighbours, as far as they are known.
        similarity_weight: the weight of similarities, where words weigh 1.
        named_times: the times that the query names.
        constants: the constants of the ranking.
        depth: the least length of the lists that are fused.
        least_similarity: a message without a word of the query is similar only above this.
    """
    columns = (
        candidates.keys,
        word_scores(candidates, rarities, constants).tolist(),
        _similarities(candidates, similarities, constants).tolist(),
        _factors(candidates, rarities, named_times, constants),
        candidates.is_exact.tolist(),
    )
    scored = map(Scored[Key]._make, zip(*columns, strict=True))
    return fuse_scores(scored, similarity_weight, constants, depth=depth, least_similarity=least_similarity)


def keys_to_compare(candidates: Candidates) -> set[Key]:
    """Returns the candidates and the messages beside them, whose similarities `rank` uses."""
    return {*candidates.keys, *candidates.before, *candidates.after} - {b""}


def speaker_words(candidates: Candidates) -> frozenset[str]:
    """Returns the words of the names of the speakers of candidates."""
    return frozenset(itertools.chain.from_iterable(map(_speaker, set(candidates.abouts))))


def asked_before(candidates: Candidates) -> dict[Key, Key]:
    """Returns for each candidate that follows a question the message with it."""
    follow = candidates.follow_questions.tolist()
    columns = zip(candidates.keys, candidates.before, follow, strict=True)
    return {key: before for key, before, is_after in columns if is_after and before}


def _similarities(candidates: Candidates, known: Mapping[Key, float], constants: RankingConstants) -> Floats:
    """Returns similarities with the shares of neighbours; see `strands.shared_similarity`. 0 if the own is unknown."""
    if not known:
        return np.zeros(len(candidates))
    own = np.array([known.get(key, np.nan) for key in candidates.keys], np.float64)
    before, after = (
        np.array([known.get(key, 0.0) for key in keys], np.float64) for keys in (candidates.before, candidates.after)
    )
    return np.nan_to_num(shared_similarity(own, before, after, constants, before_asks=candidates.follow_questions))


def _factors(
    candidates: Candidates, rarities: Mapping[str, float], named_times: Sequence[TimeRange], constants: RankingConstants
) -> list[float]:
    known = {
        (asks, is_named): factor(constants, ends_in_question=asks, is_named_speaker=is_named)
        for asks in (True, False)
        for is_named in (True, False)
    }
    speakers = {about: not rarities.keys().isdisjoint(_speaker(about)) for about in set(candidates.abouts)}
    asks = candidates.asks.tolist()
    found = [known[asking, speakers[about]] for asking, about in zip(asks, candidates.abouts, strict=True)]
    if named_times:
        times = (time_factor(time_of(at), named_times, constants) for at in candidates.times.tolist())
        found = [own * of_time for own, of_time in zip(found, times, strict=True)]
    return found


def _speaker(about: str) -> Sequence[str]:
    """Returns the words of the speaker's name."""
    return about.partition(SECTION)[0].split()
