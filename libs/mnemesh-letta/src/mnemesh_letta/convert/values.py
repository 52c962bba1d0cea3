"""Values of Letta's JSON: ids, times, texts and carried JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.unicode import well_formed

Row = Mapping[str, Any]
"""A row of a table of Letta, or an object of an agent file, by the names of its columns."""


def id_of(value: str, prefix: str, *, namespace: str = "letta") -> str:
    """Returns an id of Letta as it is if it has our form, and otherwise one that is derived from it."""
    return value if is_id(value, prefix) else derive_id(prefix, namespace, value)


def optional_text(row: Row, key: str) -> str | None:
    """Returns a text of a row, or None if it is absent."""
    value = row.get(key)
    return None if value is None else well_formed(str(value))


def json_text(value: object) -> str | None:
    """Returns JSON that is only carried as text. None and empty objects are absent."""
    return json.dumps(value, ensure_ascii=False) if value else None


def carried_json(text: str) -> Any:
    """Returns the value of carried JSON. An absent text is an empty object."""
    return json.loads(text) if text else {}


def time_zone(row: Row) -> str:
    """Returns the time zone of an agent; UTC if it has none, or an unknown one. Letta does not check it."""
    name = row.get("timezone") or "UTC"
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"
    return str(name)


def moment(value: object) -> datetime | None:
    """Returns a time of Letta: a datetime, or text in ISO form. Times without a zone are UTC.

    Raises:
        ValueError: the text is no time.
    """
    if value is None or value == "":
        return None
    parsed = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def timestamp(value: object) -> Timestamp | None:
    """Returns a time of Letta as a timestamp; None if it is absent."""
    parsed = moment(value)
    if parsed is None:
        return None
    result = Timestamp()
    result.FromDatetime(parsed)
    return result


def iso_time(value: Timestamp) -> str:
    """Returns a timestamp in Letta's form."""
    return value.ToDatetime(UTC).isoformat()
