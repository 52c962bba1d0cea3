"""Filters of points, as values that each adapter translates into filters of its engine."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

Scalar = str | int | bool


@dataclass(frozen=True, slots=True)
class Match:
    """The field has the value, or is a list that contains it."""

    field: str
    value: Scalar


@dataclass(frozen=True, slots=True)
class MatchAny:
    """The field has at least one of the values. Without values, it matches no point."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatchAll:
    """The list field contains all of the values. Without values, it matches every point."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HasWords:
    """The text field has all words of the text, in any order, case and accents. Without words, it matches no point."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The datetime field is in [gte, lt). A bound is an aware datetime, or None if the range is open."""

    field: str
    gte: datetime | None = None
    lt: datetime | None = None


@dataclass(frozen=True, slots=True)
class HasId:
    """The point's id is one of these."""

    ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class And:
    """All conditions hold. Without conditions, it matches every point."""

    conditions: "tuple[Filter, ...]"


@dataclass(frozen=True, slots=True)
class Or:
    """At least one condition holds. Without conditions, it matches no point."""

    conditions: "tuple[Filter, ...]"


@dataclass(frozen=True, slots=True)
class Not:
    """The condition does not hold."""

    condition: "Filter"


Filter = Match | MatchAny | MatchAll | HasWords | TimeRange | HasId | And | Or | Not

EVERYTHING = And(())


def all_of(*conditions: Filter | None) -> Filter:
    """Returns the conjunction of the conditions that are not None."""
    return And(tuple(condition for condition in conditions if condition is not None))
