"""Filters on segments: which segments may contain a match, and which of their points match."""

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
from mnemesh_retrieval.flat.segment import NO_TIME, SegmentBatch
from mnemesh_retrieval.index import Collection

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Mask = npt.NDArray[np.bool_]


def label_of(field: str, value: Scalar) -> str:
    """Returns the label of the points whose field has the value."""
    return f"{field}={value}"


def microseconds(value: datetime) -> int:
    """Returns the microseconds since 1970."""
    return (value - _EPOCH) // _MICROSECOND


def labels_of(payload: Any, collection: Collection) -> tuple[str, ...]:
    """Returns the labels of a point, one per value of its keyword and UUID fields; those of the tenant field first."""
    fields = (*collection.keyword_fields, *collection.uuid_fields)
    tenant = collection.tenant_field
    ordered = sorted(fields, key=lambda field: field != tenant)
    return tuple(dict.fromkeys(label_of(field, value) for field in ordered for value in _values(payload.get(field))))


def time_of(payload: Any, collection: Collection) -> int:
    """Returns the time of a point in microseconds since 1970; NO_TIME if it has none."""
    value = payload.get(collection.datetime_fields[0]) if collection.datetime_fields else None
    return NO_TIME if value is None else microseconds(datetime.fromisoformat(value))


def matching(condition: Filter, batch: SegmentBatch) -> Mask:
    """Returns the mask of the points that match."""
    match condition:
        case Match(field, value):
            return batch.with_any_label([label_of(field, value)])
        case MatchAny(field, values):
            return batch.with_any_label([label_of(field, value) for value in values])
        case MatchAll(field, values):
            return _all([batch.with_any_label([label_of(field, value)]) for value in values], batch)
        case TimeRange(_, None, None):
            return np.ones(len(batch), np.bool_)
        case TimeRange(_, gte, lt):
            return _inside(batch, gte, lt)
        case HasId(ids):
            return np.isin(batch.headers["id"], np.array([id_.bytes for id_ in ids], "S16"))
        case And(conditions):
            return _all([matching(each, batch) for each in conditions], batch)
        case Or(conditions):
            return ~_all([~matching(each, batch) for each in conditions], batch)
        case Not(inner):
            return ~matching(inner, batch)
        case HasWords():
            raise VectorIndexError("this index has no words")


@dataclass(frozen=True, slots=True)
class SegmentFilter:
    """The properties that all matches share, by which segments are selected."""

    labels: tuple[tuple[str, ...], ...]
    """A match has at least one label of each group."""
    ids: tuple[bytes, ...] | None
    """A match is one of these; None for any id."""
    since: int
    before: int


def segment_filter(condition: Filter) -> SegmentFilter:
    """Returns the properties that follow from the conditions that must all hold."""
    labels: list[tuple[str, ...]] = []
    ids: tuple[bytes, ...] | None = None
    since, before = NO_TIME, np.iinfo(np.int64).max
    for each in _conjuncts(condition):
        match each:
            case Match(field, value):
                labels.append((label_of(field, value),))
            case MatchAny(field, values):
                labels.append(tuple(label_of(field, value) for value in values))
            case MatchAll(field, values):
                labels.extend((label_of(field, value),) for value in values)
            case HasId(wanted):
                ids = tuple(id_.bytes for id_ in wanted)
            case TimeRange(_, gte, lt):
                since = max(since, microseconds(gte)) if gte is not None else since
                before = min(before, microseconds(lt)) if lt is not None else before
            case _:
                pass
    return SegmentFilter(tuple(labels), ids, since, int(before))


def _conjuncts(condition: Filter) -> Iterator[Filter]:
    if isinstance(condition, And):
        for each in condition.conditions:
            yield from _conjuncts(each)
    else:
        yield condition


def _values(value: Any) -> Sequence[Scalar]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _inside(batch: SegmentBatch, gte: datetime | None, lt: datetime | None) -> Mask:
    times = batch.headers["time"]
    inside: Mask = times != NO_TIME
    if gte is not None:
        inside &= times >= microseconds(gte)
    if lt is not None:
        inside &= times < microseconds(lt)
    return inside


def _all(masks: Sequence[Mask], batch: SegmentBatch) -> Mask:
    result = np.ones(len(batch), np.bool_)
    for mask in masks:
        result &= mask
    return result
