"""Values that every resource converts: JSON text, times, durations, optional fields."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from google.protobuf.message import Message
from mnemesh_kit.time import timestamp_from_proto, timestamp_to_proto


def json_to_text(value: Any) -> str | None:
    """Returns a JSON value as text; None for None."""
    return None if value is None else msgspec.json.encode(value).decode()


def json_from_text(text: str) -> Any:
    """Returns the JSON value of a text; None for an empty one."""
    return msgspec.json.decode(text) if text else None


def present(message: Message, name: str) -> Any:
    """Returns a field of a message; None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


def moment(message: Message, name: str) -> datetime | None:
    """Returns a time of a message; None if it is absent."""
    return timestamp_from_proto(getattr(message, name), name) if message.HasField(name) else None


def milliseconds(message: Message, name: str) -> int | None:
    """Returns a duration of a message in milliseconds; None if it is absent."""
    return getattr(message, name).ToMilliseconds() if message.HasField(name) else None


def metadata(message: Message, name: str = "metadata") -> dict[str, Any] | None:
    """Returns a JSON object that a message carries as text; None if it is absent."""
    return json_from_text(getattr(message, name)) if message.HasField(name) else None


def provenance(message: Any) -> dict[str, str | None]:
    """Returns the origin of a resource as the fields of its schema."""
    origin = message.provenance
    return {
        "created_by_id": origin.created_by_id or None,
        "last_updated_by_id": origin.last_updated_by_id or None,
        "project_id": present(origin, "project_id"),
        "template_id": present(origin, "template_id"),
        "base_template_id": present(origin, "base_template_id"),
        "deployment_id": present(origin, "deployment_id"),
        "entity_id": present(origin, "entity_id"),
    }


def set_time(message: Any, name: str, value: datetime | None) -> None:
    """Sets a time of a message unless the value is None. A value without a time zone is UTC."""
    if value is not None:
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        getattr(message, name).CopyFrom(timestamp_to_proto(aware))


def set_present(message: Message, **values: Any) -> None:
    """Sets the fields whose value is not None."""
    for name, value in values.items():
        if value is not None:
            setattr(message, name, value)
