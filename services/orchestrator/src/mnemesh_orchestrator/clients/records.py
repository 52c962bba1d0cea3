"""The records of exported agents in the other services: what each adapter does, and what all of them share."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import Message
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.transfers import ExportScope, IdMap, ImportTarget, Outcome, Record, RecordType

M = TypeVar("M", bound=Message)

_ITEM: Final = re.compile(r"\w+\[(\d+)\]\.?(.*)")


class RecordPart(Protocol):
    """The records of some types in one service."""

    @property
    def types(self) -> tuple[RecordType, ...]:
        """The types."""
        ...

    def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        """Yields the records of a type of an agent, oldest first."""
        ...

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:
        """Returns the ids of things that exist already, by the ids of the records of one shared type."""
        ...

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        """Stores a batch of records of one type, and attaches shared things to the agent.

        Args:
            request_id: the idempotency key of the batch.
            target: the agent.
            records: the records, in the order of the stream.
            existing: what `find` returned, without what this import creates.

        Raises:
            MnemeshError: Metadata: record (the index in the stream) if one record is the cause.
        """
        ...


RecordParts = Mapping[RecordType, RecordPart]


def record_of(kind: RecordType, id_: str, body: Message) -> Record:
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


def stamp(resource: Any, target: ImportTarget) -> None:
    """Gives an imported resource the ids of its authors, its project, and the times that its record does not have."""
    for name in ("created_by_id", "last_updated_by_id"):
        map_other(resource.provenance, name, target.ids)
    if target.options.project_id is not None:
        resource.provenance.project_id = target.options.project_id
    for name in ("create_time", "update_time"):
        if not resource.HasField(name):
            getattr(resource, name).GetCurrentTime()


async def items_of(
    call: Callable[..., Awaitable[Any]], request: Any, field: str, seconds: float = deadlines.IMPORT
) -> AsyncIterator[Any]:
    """Yields the items of all pages of a list, which the responses have in a field."""
    while True:
        page = await call(request, timeout=seconds)
        for item in getattr(page, field):
            yield item
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


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
