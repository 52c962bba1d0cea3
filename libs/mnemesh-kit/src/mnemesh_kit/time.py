"""Time: the clock as a dependency, and the instants, zones and ranges of requests. All results are aware, in UTC."""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from mnemesh_kit.errors import InvalidArgument


class Clock(Protocol):
    """A source of the current time.

    Example:
        >>> clock = FrozenClock()
        >>> clock.advance(60)
        >>> clock.now().isoformat()
        '2026-01-01T00:01:00+00:00'
    """

    def now(self) -> datetime:
        """Returns the current instant as an aware datetime in UTC."""
        ...

    def monotonic(self) -> float:
        """Returns seconds that never decrease. Only differences have a meaning."""
        ...


class SystemClock:
    def now(self) -> datetime:
        """Returns the current instant in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Returns the monotonic clock in seconds."""
        return time.monotonic()


class FrozenClock:
    """A clock for tests that changes only when a test advances it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start.astimezone(UTC)
        self._elapsed = 0.0

    def now(self) -> datetime:
        """Returns the start plus the advanced time."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Returns the seconds advanced since the start."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Moves the clock forward by `seconds`."""
        self._elapsed += seconds


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
# Not 24:00, which only Python 3.14 and later parse.
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]([01]\d|2[0-3]):\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?")
_ZONE: Final = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")
_MAX_ZONE_CHARS: Final = 100
_SHOWN_CHARS: Final = 40


def timestamp_to_proto(instant: datetime) -> Timestamp:
    """Returns an aware datetime as a timestamp, to the microsecond."""
    # Timestamp.FromDatetime takes several times as long, and every message and event has a timestamp.
    since = instant - _EPOCH
    return Timestamp(seconds=since.days * 86_400 + since.seconds, nanos=since.microseconds * 1_000)


def optional_timestamp_to_proto(instant: datetime | None) -> Timestamp | None:
    """Returns an aware datetime as a timestamp; None, which leaves a field unset, for None."""
    return None if instant is None else timestamp_to_proto(instant)


def timestamp_from_proto(timestamp: Timestamp, field: str) -> datetime:
    """Returns a timestamp as a datetime in UTC; anything below a microsecond is cut off.

    Raises:
        InvalidArgument: the timestamp is outside of the years 1 to 9999, or its nanoseconds are out of range.
    """
    try:
        if 0 <= timestamp.nanos < 1_000_000_000:
            return _EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1_000)
    except OverflowError:
        pass
    raise InvalidArgument(f"{field} must be a time between the years 1 and 9999.", field=field)


def optional_timestamp_from_proto(message: Message, name: str, field: str | None = None) -> datetime | None:
    """Returns the timestamp in the field `name` of `message`; None if it is not set.

    Args:
        message: the message that contains the timestamp.
        name: the name of the timestamp's field.
        field: the path to the timestamp for errors, such as `passages[0].create_time`; by default `name`.

    Raises:
        InvalidArgument: as `timestamp_from_proto`.
    """
    if not message.HasField(name):
        return None
    return timestamp_from_proto(getattr(message, name), field if field is not None else name)


def zone_from_name(name: str | None, field: str) -> tzinfo:
    """Returns the time zone with this IANA name; UTC for None and "".

    Raises:
        InvalidArgument: there is no such time zone.
    """
    if not name:
        return UTC
    try:
        if _ZONE.fullmatch(name) and len(name) <= _MAX_ZONE_CHARS:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidArgument(
        f"{field} {_shown(name)} is not an IANA time zone. Use a name such as Europe/Rome.", field=field
    )


@dataclass(frozen=True, slots=True)
class DateRange:
    """A half-open range of instants in UTC."""

    start: datetime | None = None
    """The first instant in the range; None if it has no lower bound."""
    end: datetime | None = None
    """The first instant after the range; None if it has no upper bound."""

    @property
    def is_empty(self) -> bool:
        """True if no instant can be in the range."""
        return self.start is not None and self.end is not None and self.start >= self.end


def date_range(
    start: str | None,
    end: str | None,
    time_zone: str | None = None,
    *,
    prefix: str = "",
) -> DateRange:
    """Returns the range of instants between two dates or times in ISO 8601, both inclusive.

    A bare date is a whole local day: the range starts at its beginning and ends at its end, also on days of 23 or 25
    hours. A time without an offset is local, too. A bound before the year 1 or after 9999 means no bound or leaves the
    range empty, whichever it means.

    Args:
        start: `2026-01-01`, `2026-01-01T10:00`, `2026-01-01 10:00:59.5+01:00`, or None for no lower bound.
        end: the same; a time includes the microsecond that it names.
        time_zone: the IANA name of the zone of local times; UTC for None and "".
        prefix: what comes before `start_date`, `end_date` and `time_zone` in the names of the request's fields, such
            as `filter.`.

    Raises:
        InvalidArgument: a bound is not a date or time, or the zone does not exist. It names the field. A range that
            ends before it starts is not an error: see `DateRange.is_empty`.
    """
    zone = zone_from_name(time_zone, f"{prefix}time_zone")
    return DateRange(
        start=None if start is None else _start(start, zone, f"{prefix}start_date"),
        end=None if end is None else _end(end, zone, f"{prefix}end_date"),
    )


def _start(text: str, zone: tzinfo, field: str) -> datetime | None:
    local, _ = _parsed(text, field)
    try:
        return _utc(local, zone)
    except OverflowError:
        return None if local.year == 1 else _LATEST


def _end(text: str, zone: tzinfo, field: str) -> datetime | None:
    local, is_day = _parsed(text, field)
    try:
        return _utc(local + timedelta(days=1), zone) if is_day else _utc(local, zone) + _MICROSECOND
    except OverflowError:
        return _EARLIEST if local.year == 1 else None


def _parsed(text: str, field: str) -> tuple[datetime, bool]:
    is_day = _DATE.fullmatch(text) is not None
    try:
        if is_day or _TIME.fullmatch(text):
            return datetime.fromisoformat(text), is_day
    except ValueError:
        pass
    raise InvalidArgument(
        f"{field} {_shown(text)} is not a date. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM).", field=field
    )


def _utc(moment: datetime, zone: tzinfo) -> datetime:
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
