"""The records of agents in the other services, over gRPC. They stay messages of the contracts on their way."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.model.transfers import IdMap, Record, RecordType

M = TypeVar("M", bound=Message)

_ITEM: Final = re.compile(r"\w+\[(\d+)\]\.?(.*)")


def record_of(kind: RecordType, id_: str, body: Message) -> Record:
    """Returns the record of a message."""
    return Record(kind, id_, body, body.ByteSize())


def copy_of(message: M) -> M:
    """Returns a copy of a message, so that a record stays as it was."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def map_field(message: Any, name: str, prefix: str, ids: IdMap) -> None:
    """Replaces the id in a field, unless the field is empty or absent."""
    if value := getattr(message, name):
        setattr(message, name, ids.of(prefix, value))


def map_other(message: Any, name: str, ids: IdMap) -> None:
    """Replaces the id in a field if it is that of something known."""
    if value := getattr(message, name):
        setattr(message, name, ids.other(value))


@contextmanager
def named_record(records: Sequence[Record]) -> Iterator[None]:
    """Adds the record to an error of a service that names an item of the request, such as `messages[3].role`."""
    try:
        yield
    except MnemeshError as error:
        kind = records[0].type.name.lower()
        metadata = error.metadata
        position = _ITEM.fullmatch(metadata.get("field", ""))
        index = int(position[1]) if position is not None else int(metadata.get("record", "1")) - 1
        if position is not None:
            metadata["field"] = f"{kind}.{position[2]}".rstrip(".")
        if index < len(records):
            metadata["record"] = str(records[index].index)
        raise
