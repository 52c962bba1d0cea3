"""Translates the library's filters into those of an engine."""

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
from mnemesh_retrieval.words.cjk import CJK_RUN

C = TypeVar("C")


class FilterBuilder(Protocol[C]):
    """Builds conditions of an engine."""

    def equals(self, field: str, value: Scalar) -> C:
        """Returns: the field is, or contains, the value."""
        ...

    def among(self, field: str, values: Sequence[str]) -> C:
        """Returns: the field is, or contains, one of the values."""
        ...

    def words(self, field: str, text: str) -> C:
        """Returns: the text index of the field has every word."""
        ...

    def substring(self, field: str, text: str) -> C:
        """Returns: the field contains these characters."""
        ...

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> C:
        """Returns: the datetime is in [gte, lt)."""
        ...

    def ids(self, ids: Sequence[UUID]) -> C:
        """Returns: the point is one of these; without ids, no point matches."""
        ...

    def every(self, conditions: Sequence[C]) -> C:
        """Returns: all conditions hold; without conditions, every point matches."""
        ...

    def some(self, conditions: Sequence[C]) -> C:
        """Returns: at least one of one or more conditions holds."""
        ...

    def none(self, condition: C) -> C:
        """Returns: the condition does not hold."""
        ...


def translate_filter(condition: Filter, builder: FilterBuilder[C]) -> C:
    """Returns a condition of the engine that matches the same points."""
    match condition:
        case Match(field, value):
            return builder.equals(field, value)
        case MatchAny(_, ()) | Or(()):
            return builder.ids(())  # no point; engines treat an empty alternative as no condition
        case MatchAny(field, values):
            return builder.among(field, values)
        case MatchAll(field, values):
            return builder.every([builder.equals(field, value) for value in values])
        case HasWords(field, text):
            return _has_words(field, text, builder)
        case TimeRange(_, None, None):
            return builder.every(())
        case TimeRange(field, gte, lt):
            return builder.between(field, gte, lt)
        case HasId(ids):
            return builder.ids(ids)
        case And(conditions):
            return builder.every([translate_filter(each, builder) for each in conditions])
        case Or(conditions):
            return builder.some([translate_filter(each, builder) for each in conditions])
        case Not(inner):
            return builder.none(translate_filter(inner, builder))


def _has_words(field: str, text: str, builder: FilterBuilder[C]) -> C:
    """Runs of CJK characters must occur literally, because text indexes find no words in them."""
    runs = CJK_RUN.findall(text)
    conditions = [builder.substring(field, run) for run in runs]
    spaced = CJK_RUN.sub(" ", text)
    if spaced.strip() or not runs:
        conditions.append(builder.words(field, spaced))
    return builder.every(conditions)
