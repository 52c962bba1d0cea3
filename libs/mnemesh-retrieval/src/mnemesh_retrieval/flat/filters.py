"""The filters of the library on blocks: which blocks can have a match at all, and which of their points match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.errors import VectorIndexError
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
from mnemesh_retrieval.flat.segment import NEVER, Batch
from mnemesh_retrieval.index import Collection

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TICK: Final = timedelta(microseconds=1)

Mask = npt.NDArray[np.bool_]


def label(field: str, value: Scalar) -> str:
    """How a block writes that a field holds a value."""
    return f"{field}={value}"


def micros(value: datetime) -> int:
    """Microseconds since 1970."""
    return (value - EPOCH) // TICK


def labels_of(payload: Any, collection: Collection) -> tuple[str, ...]:
    """The labels of a point: those of its tenant first, then every value of its keyword and UUID fields."""
    fields = (*collection.keyword_fields, *collection.uuid_fields)
    tenant = collection.tenant_field
    ordered = sorted(fields, key=lambda field: field != tenant)
    return tuple(dict.fromkeys(label(field, value) for field in ordered for value in _values(payload.get(field))))


def time_of(payload: Any, collection: Collection) -> int:
    """When a point is from; NEVER where it does not say."""
    said = payload.get(collection.datetime_fields[0]) if collection.datetime_fields else None
    return NEVER if said is None else micros(datetime.fromisoformat(said))


def matching(condition: Filter, batch: Batch) -> Mask:
    """Which points of the blocks match."""
    match condition:
        case Match(field, value):
            return batch.having([label(field, value)])
        case MatchAny(field, values):
            return batch.having([label(field, value) for value in values])
        case MatchAll(field, values):
            return _all([batch.having([label(field, value)]) for value in values], batch)
        case TimeRange(_, None, None):
            return np.ones(len(batch), np.bool_)
        case TimeRange(_, gte, lt):
            return _inside(batch, gte, lt)
        case HasId(ids):
            return np.isin(batch.heads["id"], np.array([id_.bytes for id_ in ids], "S16"))
        case And(conditions):
            return _all([matching(each, batch) for each in conditions], batch)
        case Or(conditions):
            return ~_all([~matching(each, batch) for each in conditions], batch)
        case Not(inner):
            return ~matching(inner, batch)
        case HasWords():
            raise VectorIndexError("this index keeps no words")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What all matches have in common, by which blocks are found."""

    labels: tuple[tuple[str, ...], ...]
    """Of each of these groups a match has at least one."""
    ids: tuple[bytes, ...] | None
    """A match is one of these; None: of any id."""
    since: int
    before: int


def narrowing(condition: Filter) -> Narrowing:
    """What the conditions that must hold all together say about blocks."""
    labels: list[tuple[str, ...]] = []
    ids: tuple[bytes, ...] | None = None
    since, before = NEVER, np.iinfo(np.int64).max
    for each in _together(condition):
        match each:
            case Match(field, value):
                labels.append((label(field, value),))
            case MatchAny(field, values):
                labels.append(tuple(label(field, value) for value in values))
            case MatchAll(field, values):
                labels.extend((label(field, value),) for value in values)
            case HasId(wanted):
                ids = tuple(id_.bytes for id_ in wanted)
            case TimeRange(_, gte, lt):
                since = max(since, micros(gte)) if gte is not None else since
                before = min(before, micros(lt)) if lt is not None else before
            case _:
                pass
    return Narrowing(tuple(labels), ids, since, int(before))


def _together(condition: Filter) -> Iterator[Filter]:
    if isinstance(condition, And):
        for each in condition.conditions:
            yield from _together(each)
    else:
        yield condition


def _values(value: Any) -> Sequence[Scalar]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _inside(batch: Batch, gte: datetime | None, lt: datetime | None) -> Mask:
    times = batch.heads["time"]
    inside: Mask = times != NEVER
    if gte is not None:
        inside &= times >= micros(gte)
    if lt is not None:
        inside &= times < micros(lt)
    return inside


def _all(masks: Sequence[Mask], batch: Batch) -> Mask:
    together = np.ones(len(batch), np.bool_)
    for mask in masks:
        together &= mask
    return together
