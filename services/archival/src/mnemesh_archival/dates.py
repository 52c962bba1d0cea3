"""Date bounds as callers write them, in their own time zone, to a range of UTC instants."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from mnemesh_kit.errors import InvalidArgument

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?")
_TICK = timedelta(microseconds=1)


def zone(name: str | None, where: str) -> ZoneInfo:
    """The IANA time zone of that name; UTC for none."""
    try:
        return ZoneInfo(name or "UTC")
    except (KeyError, ValueError, OSError):
        raise InvalidArgument(f"{where} {name!r} is no IANA time zone, like Europe/Rome.", field=where) from None


def first_instant(value: str | None, local: ZoneInfo, where: str) -> datetime | None:
    """Where a range begins: the time given, or the begin of the day."""
    return None if value is None else _utc(_parsed(value, where), local, where)


def end_instant(value: str | None, local: ZoneInfo, where: str) -> datetime | None:
    """Where a range has ended: just after the time given, or with the whole of the day."""
    if value is None:
        return None
    parsed = _parsed(value, where)
    try:
        if isinstance(parsed, datetime):
            return _utc(parsed, local, where) + _TICK
        return _utc(parsed + timedelta(days=1), local, where)
    except OverflowError:
        raise _refused(value, where) from None


def _parsed(value: str, where: str) -> datetime | date:
    try:
        if _DATE.fullmatch(value):
            return date.fromisoformat(value)
        if _TIME.fullmatch(value):
            return datetime.fromisoformat(value)
    except ValueError:
        pass
    raise _refused(value, where)


def _utc(value: datetime | date, local: ZoneInfo, where: str) -> datetime:
    at = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day, tzinfo=local)
    try:
        return (at if at.tzinfo else at.replace(tzinfo=local)).astimezone(UTC)
    except OverflowError:
        raise _refused(str(value), where) from None


def _refused(value: str, where: str) -> InvalidArgument:
    shown = value if len(value) <= 40 else value[:40] + "…"
    return InvalidArgument(f"{where} {shown!r} is no date: write YYYY-MM-DD or YYYY-MM-DDTHH:MM.", field=where)
