"""Fields of messages that folders and files share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id

from mnemesh_files.model.provenance import CLIENT_PROVENANCE, PROVENANCE, Provenance

T = TypeVar("T")

FOLDER: Final = "source"
"""The prefix of the ids of folders."""


def optional_field(message: Message, name: str) -> Any:
    """Returns the value of a field with presence, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def enum_from_proto(values: Mapping[Any, T], number: int, field: str) -> T:
    """Returns the model's value of an enum's number. Raises InvalidArgument if the number is unknown."""
    if number not in values:
        raise InvalidArgument(f"{field} has the unknown value {number}.", field=field)
    return values[number]


def folder_id_from_proto(value: str, field: str = "folder_id") -> str:
    """Returns a folder id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, FOLDER, field)


def file_id_from_proto(value: str, field: str = "file_id") -> str:
    """Returns a file id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "file", field)


def upload_id_from_proto(value: str, field: str = "upload_id") -> str:
    """Returns the id of an upload. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "upload", field)


def agent_id_from_proto(value: str, field: str = "agent_id") -> str:
    """Returns an agent id. Raises InvalidArgument if it is not well-formed."""
    return require_id(value, "agent", field)


def provenance_to_proto(provenance: Provenance) -> audit_pb2.Provenance:
    """Returns authorship as a message."""
    return audit_pb2.Provenance(**{name: getattr(provenance, name) for name in PROVENANCE})


def provenance_from_proto(message: audit_pb2.Provenance) -> Provenance:
    """Returns the ids that clients set."""
    return Provenance(**{name: optional_field(message, name) for name in CLIENT_PROVENANCE})
