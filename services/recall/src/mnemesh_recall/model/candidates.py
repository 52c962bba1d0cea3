"""The candidates of a search of messages: as the full-text index has them, and as arrays for the ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
    def of(cls, found: Sequence[Candidate], terms: Sequence[str]) -> Candidates:
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

    def chosen(self, mask: Array) -> Candidates:
        """Returns the candidates of a mask."""
        rows = np.flatnonzero(mask).tolist()
        if len(rows) == len(self):
            return self

        def of(values: Any) -> Any:
            return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]

        return Candidates(*(of(getattr(self, each.name)) for each in fields(self)))

    def joined(self, other: Candidates) -> Candidates:
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
