"""Fields of messages, and the values that tools and executions share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from mnemesh.tools.v1 import tools_pb2
from mnemesh_kit.errors import InvalidArgument

from mnemesh_tools.model.tools import Requirement, SourceType

T = TypeVar("T")

_SOURCE_TYPES: Final = {
    tools_pb2.SOURCE_TYPE_UNSPECIFIED: SourceType.PYTHON,
    tools_pb2.SOURCE_TYPE_PYTHON: SourceType.PYTHON,
    tools_pb2.SOURCE_TYPE_TYPESCRIPT: SourceType.TYPESCRIPT,
}
_SOURCE_TYPE_NUMBERS: Final = {
    SourceType.PYTHON: tools_pb2.SOURCE_TYPE_PYTHON,
    SourceType.TYPESCRIPT: tools_pb2.SOURCE_TYPE_TYPESCRIPT,
}


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def enum_from_proto(values: Mapping[Any, T], number: int, field: str) -> T:
    """Returns the domain value of an enum's number.

    Raises:
        InvalidArgument: The number is unknown.
    """
    if number not in values:
        raise InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return values[number]


def source_type_from_proto(number: int, field: str) -> SourceType:
    """Returns the language of a source; the default is Python.

    Raises:
        InvalidArgument: The number is unknown.
    """
    return enum_from_proto(_SOURCE_TYPES, number, field)


def source_type_to_proto(source_type: SourceType) -> tools_pb2.SourceType.ValueType:
    """Returns the enum value of a language."""
    return _SOURCE_TYPE_NUMBERS[source_type]


def requirements_from_proto(messages: Iterable[tools_pb2.PackageRequirement]) -> tuple[Requirement, ...]:
    """Returns the packages of a repeated field."""
    return tuple(Requirement(message.name, optional_field(message, "version")) for message in messages)


def requirements_to_proto(requirements: Iterable[Requirement]) -> list[tools_pb2.PackageRequirement]:
    """Returns the messages of packages."""
    return [tools_pb2.PackageRequirement(name=item.name, version=item.version) for item in requirements]
