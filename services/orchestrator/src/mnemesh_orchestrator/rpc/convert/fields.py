"""Fields of messages: presence, enums, ids and durations."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import is_id, require_id

from mnemesh_orchestrator.model.conversations import default_conversation_id

K = TypeVar("K", bound=int)
T = TypeVar("T")


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def present_fields(message: Message, *names: str) -> dict[str, Any]:
    """Returns the values of those fields among `names` that are set."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def plain_fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass whose value is a text, a number or a boolean."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | bool)}


def enum_from_proto(values: Mapping[K, T], number: K, field: str) -> T:
    """Returns the value of an enum number.

    Raises:
        InvalidArgument: The number is unknown, such as one that a newer client sends.
    """
    if number not in values:
        raise InvalidArgument(f"{field} must be a value that this server knows, not {number}.", field=field)
    return values[number]


def conversation_id_from_proto(agent_id: str, value: str | None) -> str:
    """Returns the id of a conversation of an agent. Nothing, "default" and the agent's id mean the default one."""
    if value in (None, "", "default", agent_id):
        return default_conversation_id(agent_id)
    return require_id(str(value), "conv", "conversation_id")


def any_conversation_id_from_proto(value: str, field: str = "conversation_id") -> str:
    """Returns the id of a conversation of any agent. The id of an agent means its default conversation."""
    return default_conversation_id(value) if is_id(value, "agent") else require_id(value, "conv", field)


def seconds_from_proto(message: Message, name: str) -> float | None:
    """Returns a duration in seconds, or None if the field is not set."""
    duration = optional_field(message, name)
    return None if duration is None else duration.seconds + duration.nanos / 1e9


def duration_to_proto(milliseconds: int | None) -> Duration | None:
    """Returns the message of a duration, or None."""
    if milliseconds is None:
        return None
    result = Duration()
    result.FromMilliseconds(milliseconds)
    return result
