"""Fields of messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh_kit.errors import InvalidArgument


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def optional_timestamp_from_proto(message: Message, name: str) -> datetime | None:
    """Returns the time of a field, or None if it is not set.

    Raises:
        InvalidArgument: The time is outside the calendar.
    """
    if not message.HasField(name):
        return None
    try:
        return timestamp_from_proto(getattr(message, name))
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{name} must be a valid time.", field=name) from None


def timestamp_from_proto(timestamp: Timestamp) -> datetime:
    """Returns the time in UTC."""
    return timestamp.ToDatetime(tzinfo=UTC)


def timestamp_to_proto(time: datetime) -> Timestamp:
    """Returns the message of a time."""
    timestamp = Timestamp()
    timestamp.FromDatetime(time)
    return timestamp
