"""Comparison of statements by their words: equal, nearly equal, or the same of different values. Pure functions."""

import hashlib
import re
import tomllib
import unicodedata
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from math import ceil
from typing import Any, Final

from mnemesh_retrieval.words.analysis import indexed

MIN_SIMILARITY: Final = 0.8
"""The share of common words from which two statements are nearly equal."""

_CLOSING: Final = ".,;:!?…\"'“”‘’«»()[]"
_ARTICLES: Final = frozenset({"a", "an", "the"})
_TOKEN: Final = re.compile(r"[^\W_]+(?:[.,:/-][0-9]+)*")
_WORDS: Final[dict[str, Any]] = tomllib.loads(
    (resources.files("mnemesh_recall.model") / "statement_words.toml").read_text(encoding="utf-8")
)
_NEGATIONS: Final = frozenset(_WORDS["negations"].split())
_UNIMPORTANT: Final = frozenset(_WORDS["unimportant"].split())
_PAST: Final = frozenset(_WORDS["past"].split())
_ONE_VALUE: Final = frozenset(indexed(_WORDS["one_value"]).split())
_ATTRIBUTES: Final = frozenset(indexed(_WORDS["attributes"]).split())
_CALENDAR: Final = frozenset(indexed(_WORDS["calendar"]).split())
_SAME: Final = {indexed(word): indexed(other) for word, other in _WORDS["same"].items()}
_MAX_VALUE_WORDS: Final = 5
_MIN_SHARE: Final = 1 / 6
"""No pair with a smaller share of common words has a relation: two common words, and five others of either."""
_YEAR: Final = re.compile(r"(?:19|20)\d\d")


class Relation(StrEnum):
    """The relation of two statements."""

    EQUAL = "equal"
    NEAR = "near"
    CONTRADICTORY = "contradictory"


@dataclass(frozen=True, slots=True)
class Statement:
    """The words of a statement that matter, stemmed, in order.

    `numbers` and `names` are the words that must not differ between statements that say the same. Names are
    capitalised words other than the first one. `past` is true for what is no longer so. `raw_positions` has the
    position of each word among all words.
    """

    key: str
    words: tuple[str, ...]
    numbers: frozenset[str]
    names: frozenset[str]
    negated: bool
    past: bool
    raw_positions: tuple[int, ...]
    word_set: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "word_set", frozenset(self.words))


def text_key(text: str) -> str:
    """Returns a key that is equal for texts that differ only in case, white space, articles and outer punctuation.

    Tense, numbers, signs within words and the order of words make a difference.
    """
    words = unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("n't", " not").split()
    bare = [bare for word in words if (bare := word.strip(_CLOSING))]
    kept = [word for word in bare if word not in _ARTICLES] or bare or words
    return hashlib.sha256(" ".join(kept).encode()).hexdigest()[:32]


@lru_cache(maxsize=20_000)
def statement_of(text: str) -> Statement:
    """Returns the words of a text that matter."""
    plain = text.replace("’", "'").replace("n't ", " not ").replace("n't.", " not.")
    words: list[str] = []
    positions: list[int] = []
    numbers, names, negated, past = set(), set(), False, False
    for position, token in enumerate(_TOKEN.findall(plain)):
        lowered = token.casefold()
        past |= lowered in _PAST
        if lowered in _NEGATIONS:
            negated = not negated
            continue
        if lowered in _UNIMPORTANT and not (token.isupper() and len(token) > 1):
            continue
        is_number = any(character.isdigit() for character in token)
        for stem in [lowered] if is_number else indexed(token).split():
            word = _SAME.get(stem, stem)
            words.append(word)
            positions.append(position)
            if is_number:
                numbers.add(word)
            elif position and token[0].isupper():
                names.add(word)
    is_past = past and "born" not in words
    return Statement(
        text_key(text), tuple(words), frozenset(numbers), frozenset(names), negated, is_past, tuple(positions)
    )


def similarity(one: Statement, other: Statement) -> float:
    """Returns the share of common words among all words of two statements, from 0 to 1."""
    common = len(one.word_set & other.word_set)
    return common / (len(one.word_set) + len(other.word_set) - common) if common else 0.0


def relation(one: str, other: str) -> tuple[Relation, float] | None:
    """Returns how two texts relate and how similar they are; None if they say different things."""
    return related(statement_of(one), statement_of(other))


def related(first: Statement, second: Statement) -> tuple[Relation, float] | None:
    """Returns how two statements relate and how similar they are; None if they say different things."""
    if first.key == second.key:
        return Relation.EQUAL, 1.0
    share = similarity(first, second)
    if share < _MIN_SHARE or first.past != second.past:
        return None
    if _contradict(first, second):
        return Relation.CONTRADICTORY, share
    if share >= MIN_SIMILARITY and _same_values(first, second) and _same_order(first, second):
        return Relation.NEAR, share
    return None


def statement_keys(statement: Statement, frequency: Mapping[str, int]) -> frozenset[Hashable]:
    """Returns keys of which two related statements have one in common.

    Statements with a share of common words of at least MIN_SIMILARITY have one of their rarest words in common. The
    other relations are between equal words, equal words but for numbers, or an equal matter.

    Args:
        statement: the statement.
        frequency: the number of statements with each word, the same for all statements.
    """
    words = statement.words
    rarest = sorted(statement.word_set, key=lambda word: (frequency.get(word, 0), word))
    needed = len(rarest) - ceil(MIN_SIMILARITY * len(rarest)) + 1
    keys: set[Hashable] = {statement.key, words, tuple("0" if word in statement.numbers else word for word in words)}
    keys.update(("word", word) for word in rarest[:needed])
    matter = next((words[: index + 1] for index, word in enumerate(words) if index and word in _ONE_VALUE), None)
    attribute = next((words[: index + 2] for index, word in enumerate(words) if word in _ATTRIBUTES), None)
    keys.update(("matter", part) for part in (matter, attribute) if part is not None)
    return frozenset(keys)


def _same_values(one: Statement, other: Statement) -> bool:
    """Returns whether what a statement has and the other lacks is neither a number nor a name nor a negation."""
    return (
        one.negated == other.negated
        and one.numbers == other.numbers
        and not (one.names | other.names) & (one.word_set ^ other.word_set)
    )


def _same_order(one: Statement, other: Statement) -> bool:
    """Returns whether the statements are about the same: "Ana likes Bo" is not "Bo likes Ana" or "Cy likes Bo".

    The first word of a sentence may be a name.
    """
    if one.words[0] not in other.words or other.words[0] not in one.words:
        return False
    common = one.word_set & other.word_set
    first = [word for word in one.words if word in common and word in one.names | {one.words[0]}]
    second = [word for word in other.words if word in common and word in other.names | {other.words[0]}]
    return first[:1] == second[:1] or not (first and second)


def _contradict(one: Statement, other: Statement) -> bool:
    if one.negated != other.negated:
        return len(one.words) > 1 and one.words == other.words
    return _other_number(one, other) or _other_value(one, other)


def _other_number(one: Statement, other: Statement) -> bool:
    """Returns whether the statements differ in numbers only, and these are values rather than parts of a name."""
    if len(one.words) != len(other.words):
        return False
    differing = [index for index, pair in enumerate(zip(one.words, other.words, strict=True)) if pair[0] != pair[1]]
    if not differing or differing[0] == 0 or len(one.words) < 2:
        return False
    if not all(one.words[index] in one.numbers and other.words[index] in other.numbers for index in differing):
        return False
    if one.raw_positions[differing[0]] < 2:
        return False  # "Room 12 has a projector": the number is a part of the subject
    has_one_value = not _ONE_VALUE.isdisjoint(one.words)
    return has_one_value or not all(_YEAR.fullmatch(one.words[index]) for index in differing)


def _other_value(one: Statement, other: Statement) -> bool:
    """Returns whether the statements begin alike, up to a word such as "lives", and continue with different values."""
    length = 0
    for first, second in zip(one.words, other.words, strict=False):
        if first != second:
            break
        length += 1
    prefix, values = one.words[:length], (one.words[length:], other.words[length:])
    has_one_value = not _ONE_VALUE.isdisjoint(prefix[1:])
    has_attribute = any(word in _ATTRIBUTES and index + 1 < length for index, word in enumerate(prefix))
    return (
        length > 1
        and (has_one_value or has_attribute)
        and all(0 < len(value) <= _MAX_VALUE_WORDS for value in values)
        and values[0][0] not in values[1]
        and values[1][0] not in values[0]
        # "works on Mondays" and "works at Acme" say different things.
        and _kind(one, values[0][0]) == _kind(other, values[1][0])
    )


def _kind(statement: Statement, word: str) -> str:
    if word in _CALENDAR:
        return "calendar"
    return "name" if word in statement.names or word in statement.numbers else "word"
