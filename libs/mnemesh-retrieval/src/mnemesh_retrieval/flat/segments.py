"""Segments: up to 108 points of one tenant, as arrays and as the columns of a row; and filters on them."""

import json
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from mnemesh_retrieval.engine_queries import translate_filter
from mnemesh_retrieval.errors import PointInvalid, VectorIndexError
from mnemesh_retrieval.filters import (
    And,
    Filter,
    HasId,
    Match,
    MatchAll,
    MatchAny,
    Scalar,
    TimeRange,
)
from mnemesh_retrieval.index import Collection

CAPACITY: Final = 108
"""The largest number of points in a segment: so many vectors of 256 numbers, their headers and some labels are one page
of the file. Adding to a segment rewrites it; reading costs about as much per segment as per 64 points."""
MAX_LABELS: Final = 64
"""The largest number of different labels in a segment: each point has one bit for each label."""
HEADER: Final = np.dtype([("id", "S16"), ("time", "<i8"), ("inverse", "<f4"), ("bits", "<u8")])
"""The stored fields of a point other than its vector. `inverse` is one divided by the length of the stored vector."""
NO_TIME: Final = np.iinfo(np.int64).min
"""The time of a point without one."""

Headers = npt.NDArray[Any]
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Entry:
    """A point to store."""

    id: bytes
    time: int
    """Microseconds since 1970."""
    labels: tuple[str, ...]
    vector: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Segment:
    """Points of one tenant; `headers` and `codes` have a row for each."""

    labels: tuple[str, ...]
    headers: Headers
    codes: Codes

    @classmethod
    def empty(cls, dimension: int) -> "Segment":
        """Returns a segment without points."""
        return cls((), np.empty(0, HEADER), np.empty((0, dimension), np.int8))

    @classmethod
    def from_row(cls, labels: str, headers: bytes, vectors: bytes, dimension: int) -> "Segment":
        return cls(labels_from_row(labels), np.frombuffer(headers, HEADER), codes_from_row(vectors, dimension))

    def to_row(self) -> tuple[str, bytes, bytes]:
        """Returns the columns of its row: labels, headers and vectors."""
        return json.dumps(self.labels), self.headers.tobytes(), self.codes.tobytes()

    def __len__(self) -> int:
        return len(self.headers)

    @property
    def oldest(self) -> int:
        """The earliest time of its points."""
        return int(self.headers["time"].min())

    @property
    def newest(self) -> int:
        """The latest time of its points."""
        return int(self.headers["time"].max())

    def ids(self) -> list[bytes]:
        """Returns the ids of its points."""
        return ids_of(self.headers)

    def without(self, ids: Sequence[bytes]) -> "Segment":
        """Returns the segment without these points, and without the labels that only they have."""
        return self.filtered(~np.isin(self.headers["id"], np.array(ids, "S16")))

    def filtered(self, mask: npt.NDArray[np.bool_]) -> "Segment":
        """Returns the points of a mask, with their labels."""
        headers = self.headers[mask]
        empty = Segment((), np.empty(0, HEADER), self.codes[:0])
        labels = [self._labels_of(int(bits)) for bits in headers["bits"]]
        return empty._joined(headers, self.codes[mask], labels)

    def fitting(self, entries: Sequence[Entry]) -> int:
        """Returns how many of the entries, from the first, fit into the segment."""
        labels = set(self.labels)
        for index, entry in enumerate(entries[: CAPACITY - len(self)]):
            labels.update(entry.labels)
            if len(labels) > MAX_LABELS:
                return index
        return min(len(entries), CAPACITY - len(self))

    def extended(self, entries: Sequence[Entry]) -> "Segment":
        """Returns the segment with these points added; they must fit."""
        codes, inverses = quantized(np.stack([entry.vector for entry in entries]))
        headers = np.empty(len(entries), HEADER)
        headers["id"] = [entry.id for entry in entries]
        headers["time"] = [entry.time for entry in entries]
        headers["inverse"] = inverses
        return self._joined(headers, codes, [entry.labels for entry in entries])

    def _joined(self, headers: Headers, codes: Codes, labels: Sequence[Sequence[str]]) -> "Segment":
        """Adds points whose label bits are not set yet."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        for of_point in labels:
            for label in of_point:
                numbers.setdefault(label, len(numbers))
        headers["bits"] = [sum(1 << numbers[label] for label in set(of_point)) for of_point in labels]
        return Segment(tuple(numbers), np.concatenate([self.headers, headers]), np.concatenate([self.codes, codes]))

    def _labels_of(self, bits: int) -> list[str]:
        return [label for number, label in enumerate(self.labels) if bits >> number & 1]


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Several segments without their vectors, to be searched at once; `headers` has a row for each point."""

    labels: tuple[str, ...]
    """The labels of each segment, as in its row."""
    counts: tuple[int, ...]
    """The number of points of each segment."""
    headers: Headers

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[str, bytes]]) -> "SegmentBatch":
        """Returns the segments of rows: labels and headers."""
        headers = np.frombuffer(b"".join(of_row for _, of_row in rows), HEADER)
        counts = tuple(len(of_row) // HEADER.itemsize for _, of_row in rows)
        return cls(tuple(labels for labels, _ in rows), counts, headers)

    def with_any_label(self, wanted: AbstractCollection[str]) -> npt.NDArray[np.bool_]:
        """Returns the mask of the points that have at least one of the labels."""
        bits: dict[str, int] = {}
        for labels in self.labels:
            if labels not in bits:  # most segments of a tenant have the same labels
                names = labels_from_row(labels)
                bits[labels] = sum(1 << number for number, name in enumerate(names) if name in wanted)
        by_segment = np.array([bits[labels] for labels in self.labels], np.uint64)
        mask: npt.NDArray[np.bool_] = (self.headers["bits"] & np.repeat(by_segment, self.counts)) != 0
        return mask

    def __len__(self) -> int:
        return len(self.headers)


def labels_from_row(labels: str) -> tuple[str, ...]:
    """Returns the labels of a segment, in the order of their bits."""
    return tuple(json.loads(labels))


def codes_from_row(vectors: bytes, dimension: int) -> Codes:
    """Returns the vectors of a segment, or of several in turn, with a row for each point."""
    return np.frombuffer(vectors, np.int8).reshape(-1, dimension)


def ids_of(headers: Headers) -> list[bytes]:
    """Returns the ids of points, sixteen bytes each."""
    return [id_.ljust(16, b"\0") for id_ in headers["id"].tolist()]  # numpy strips trailing zeros as padding


def quantized(vectors: npt.NDArray[np.float32]) -> tuple[Codes, npt.NDArray[np.float32]]:
    """Returns vectors as eight-bit integers, and one divided by the length of each.

    Each vector has its own scale, and none may be zero. The cosine with another vector is off by about 0.001.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    codes = np.rint(vectors * (127 / largest)).astype(np.int8)
    lengths = np.linalg.norm(codes.astype(np.float32), axis=1)
    return codes, (1 / lengths).astype(np.float32)


def require_few_labels(labels: Sequence[str], point_id: object) -> None:
    """Raises PointInvalid if a point has more labels than a segment can distinguish."""
    if len(labels) > MAX_LABELS:
        raise PointInvalid(f"point {point_id}: more than {MAX_LABELS} values of its keyword fields")


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
    return translate_filter(condition, _MaskBuilder(batch))


class _MaskBuilder:
    """See FilterBuilder. A condition is the mask of the points for which it holds."""

    def __init__(self, batch: SegmentBatch) -> None:
        self._batch = batch

    def equals(self, field: str, value: Scalar) -> Mask:
        return self._batch.with_any_label([label_of(field, value)])

    def among(self, field: str, values: Sequence[str]) -> Mask:
        return self._batch.with_any_label([label_of(field, value) for value in values])

    def words(self, field: str, text: str) -> Mask:  # noqa: ARG002  (there are none)
        raise VectorIndexError("this index has no words")

    substring = words

    def between(self, field: str, gte: datetime | None, lt: datetime | None) -> Mask:  # noqa: ARG002  (the only time)
        times = self._batch.headers["time"]
        inside: Mask = times != NO_TIME
        if gte is not None:
            inside &= times >= microseconds(gte)
        if lt is not None:
            inside &= times < microseconds(lt)
        return inside

    def ids(self, ids: Sequence[UUID]) -> Mask:
        return np.isin(self._batch.headers["id"], np.array([id_.bytes for id_ in ids], "S16"))

    def every(self, conditions: Sequence[Mask]) -> Mask:
        result = np.ones(len(self._batch), np.bool_)
        for mask in conditions:
            result &= mask
        return result

    def some(self, conditions: Sequence[Mask]) -> Mask:
        return ~self.every([~mask for mask in conditions])

    def none(self, condition: Mask) -> Mask:
        return ~condition


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
