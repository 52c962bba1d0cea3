"""Fields of messages."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None
