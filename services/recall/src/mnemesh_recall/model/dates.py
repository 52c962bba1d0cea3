"""The bounds of a search in the words of its caller: dates and times, in a time zone, as instants."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from mnemesh_kit.errors import InvalidArgument

_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?")
_ZONE: Final = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*")
_INSTANT: Final = timedelta(microseconds=1)


def time_zone(name: str) -> tzinfo:
    """The zone of an IANA name; UTC for "".

    Raises:
        InvalidArgument: no such zone.
    """
    if not name:
        return UTC
    try:
        if _ZONE.fullmatch(name) and len(name) <= 100:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidArgument(f"time_zone is not the name of an IANA time zone: {name[:100]}", field="time_zone")


def start_bound(text: str, zone: tzinfo) -> datetime | None:
    """The first instant that `start_date` admits; None where that is before all time."""
    moment, _ = _parsed(text, "start_date")
    return _instant(moment, zone)


def end_bound(text: str, zone: tzinfo) -> datetime | None:
    """The first instant that `end_date` no longer admits: a bare date admits its whole day, a time itself."""
    moment, is_day = _parsed(text, "end_date")
    try:
        return _instant(moment + timedelta(days=1), zone) if is_day else _later(_instant(moment, zone))
    except OverflowError:
        return None


def _later(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment + _INSTANT


def _instant(moment: datetime, zone: tzinfo) -> datetime | None:
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        return None


def _parsed(text: str, field: str) -> tuple[datetime, bool]:
    is_day = _DATE.fullmatch(text) is not None
    try:
        if is_day or _TIME.fullmatch(text):
            return datetime.fromisoformat(text), is_day
    except ValueError:
        pass
    raise InvalidArgument(
        f"Invalid {field} format: {text[:100]}. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM).", field=field
    )
