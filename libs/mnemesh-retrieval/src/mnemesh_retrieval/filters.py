"""The filter language of the vector index: small values that each adapter translates to its engine's own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

Scalar = str | int | bool


@dataclass(frozen=True, slots=True)
class Match:
    """The field holds the value (or, for a list field, contains it)."""

    field: str
    value: Scalar


@dataclass(frozen=True, slots=True)
class MatchAny:
    """The field holds at least one of the values. No values match no point."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatchAll:
    """The list field contains every one of the values. No values match every point."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HasWords:
    """The text field has every word of the text, whatever their order, case and accents. No words match no point."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The datetime field lies in [gte, lt); either bound may be open. Bounds are aware datetimes."""

    field: str
    gte: datetime | None = None
    lt: datetime | None = None


@dataclass(frozen=True, slots=True)
class HasId:
    """The point's id is one of these."""

    ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class And:
    """Every condition holds. Without conditions: every point."""

    conditions: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one condition holds. Without conditions: no point."""

    conditions: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The condition does not hold."""

    condition: Filter


Filter = Match | MatchAny | MatchAll | HasWords | TimeRange | HasId | And | Or | Not

EVERYTHING = And(())


def all_of(*conditions: Filter | None) -> Filter:
    """The conjunction of the conditions that are given; None stands for no condition."""
    return And(tuple(condition for condition in conditions if condition is not None))
