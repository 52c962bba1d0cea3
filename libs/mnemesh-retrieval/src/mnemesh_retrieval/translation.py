"""One translation of the library's filters, into the words of whichever engine is spoken to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

from mnemesh_retrieval.filters import (
    And,
    Filter,
    HasId,
    HasWords,
    Match,
    MatchAll,
    MatchAny,
    Not,
    Or,
    Scalar,
    TimeRange,
)
from mnemesh_retrieval.unspaced import UNSPACED_RUN

C = TypeVar("C")


class Vocabulary(Protocol[C]):
    """How an engine says each kind of condition."""

    def equals(self, field: str, value: Scalar) -> C:
        """The field is, or contains, the value."""
        ...

    def among(self, field: str, values: Sequence[str]) -> C:
        """The field is, or contains, one of the values."""
        ...

    def words(self, field: str, text: str) -> C:
        """The field's text index has every word."""
        ...

    def substring(self, field: str, text: str) -> C:
        """The field contains the characters as they are."""
        ...

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> C:
        """The datetime lies in the range."""
        ...

    def ids(self, ids: Sequence[UUID]) -> C:
        """The point is one of these; none of them: no point."""
        ...

    def every(self, conditions: Sequence[C]) -> C:
        """All hold; without conditions: every point."""
        ...

    def some(self, conditions: Sequence[C]) -> C:
        """At least one of one or more holds."""
        ...

    def none(self, condition: C) -> C:
        """It does not hold."""
        ...


def translated(condition: Filter, say: Vocabulary[C]) -> C:
    """A condition of the engine that matches the very same points."""
    match condition:
        case Match(field, value):
            return say.equals(field, value)
        case MatchAny(_, ()) | Or(()):
            return say.ids(())  # no point; an empty alternative would be no condition at all
        case MatchAny(field, values):
            return say.among(field, values)
        case MatchAll(field, values):
            return say.every([say.equals(field, value) for value in values])
        case HasWords(field, text):
            return _has_words(field, text, say)
        case TimeRange(_, None, None):
            return say.every(())
        case TimeRange(field, gte, lt):
            return say.between(field, gte, lt)
        case HasId(ids):
            return say.ids(ids)
        case And(conditions):
            return say.every([translated(each, say) for each in conditions])
        case Or(conditions):
            return say.some([translated(each, say) for each in conditions])
        case Not(inner):
            return say.none(translated(inner, say))


def _has_words(field: str, text: str, say: Vocabulary[C]) -> C:
    """Runs of characters of scripts without spaces must occur as they are; text indexes know no words in them."""
    runs = UNSPACED_RUN.findall(text)
    conditions = [say.substring(field, run) for run in runs]
    spaced = UNSPACED_RUN.sub(" ", text)
    if spaced.strip() or not runs:
        conditions.append(say.words(field, spaced))
    return say.every(conditions)
