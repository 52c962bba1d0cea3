"""The twins of the contracts, and what their base makes of fields."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import mnemesh_types
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2
from mnemesh.files.v1 import files_service_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.blocks import (
    AUTHOR,
    AgentAuthor,
    AppendEdit,
    Block,
    BlockOperation,
    BlockRevision,
    CoreMemory,
    OwnerAuthor,
)
from mnemesh_types.files import FileFilter, FileStatus
from mnemesh_types.provenance import Provenance
from mnemesh_types.tools import CodeLanguage, PackagesState, SourceType, ToolType
from mnemesh_types.twin import (
    EPOCH,
    Conversion,
    Twin,
    attribute_name,
    enum_from_proto,
    fields_of,
    message_of,
    number_of,
    set_field,
    whole_oneof,
    written,
)


def _twins() -> Iterator[type[Twin[Any]]]:
    """Yields the generated twins."""
    for path in sorted(Path(mnemesh_types.__file__).parent.glob("*.py")):
        if "scripts/generate_types.py" in path.read_text(encoding="utf-8").partition("\n")[0]:
            module = import_module(f"mnemesh_types.{path.stem}")
            for value in vars(module).values():
                if isinstance(value, type) and issubclass(value, Twin) and value.__module__ == module.__name__:
                    yield value


TWINS = {twin.__name__: twin for twin in _twins()}


def _fill(message: Any, variant: int = 0) -> None:
    """Sets every field of a message to a value that is not its default; of a oneof, the field at `variant`."""
    for number, field in enumerate(message.DESCRIPTOR.fields, 1):
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1 and oneof.fields[variant % len(oneof.fields)] is not field:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value_type = field.message_type.fields_by_name["value"].message_type
            if value_type is None:
                getattr(message, field.name)["key"] = "value"
            else:
                _fill(getattr(message, field.name)["key"], variant)
            continue
        if field.is_repeated:
            if field.message_type is not None:
                _fill(getattr(message, field.name).add(), variant)
            else:
                getattr(message, field.name).append(_scalar(field, number, variant))
            continue
        if field.message_type is None:
            setattr(message, field.name, _scalar(field, number, variant))
        elif field.message_type.full_name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            getattr(message, field.name).seconds = 1_000 + number
            getattr(message, field.name).nanos = 5_000
        else:
            _fill(getattr(message, field.name), variant)
            getattr(message, field.name).SetInParent()


def _scalar(field: Any, number: int, variant: int) -> Any:
    if field.enum_type is not None:
        values = [value.number for value in field.enum_type.values if value.number]
        return values[variant % len(values)]
    samples = {field.CPPTYPE_STRING: f"{field.name} {number}", field.CPPTYPE_BOOL: True}
    if field.type == field.TYPE_BYTES:
        return b"bytes"
    return samples.get(field.cpp_type, number)


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_each_field_of_a_message_survives(twin: type[Twin[Any]]) -> None:
    for variant in range(12):
        message = message_of(twin)()
        _fill(message, variant)
        value = twin.from_proto(message)
        assert value.to_proto() == message
        assert twin.from_proto(type(message).FromString(value.to_proto().SerializeToString())) == value


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_a_twin_has_each_field_of_its_message(twin: type[Twin[Any]]) -> None:
    described: Any = message_of(twin).DESCRIPTOR
    wanted = {
        field.containing_oneof.name if whole_oneof(field.containing_oneof) else attribute_name(field.name)
        for field in described.fields
    }
    assert {field.name for field in fields(twin)} == wanted  # type: ignore[arg-type]


def test_absent_empty_and_zero_differ() -> None:
    absent = Block.from_proto(blocks_pb2.Block())
    empty = Block.from_proto(blocks_pb2.Block(description="", created_for_agent_id=""))
    assert (absent.description, empty.description) == (None, "")
    assert not absent.to_proto().HasField("description")
    assert empty.to_proto().HasField("description")
    assert absent.created_at == EPOCH
    assert not absent.to_proto().HasField("create_time")


def test_times_are_aware_and_exact_to_the_microsecond() -> None:
    moment = datetime(2026, 5, 4, 3, 2, 1, 987_654, tzinfo=UTC)
    block = Block.from_proto(Block(created_at=moment, updated_at=moment + timedelta(days=1)).to_proto())
    assert (block.created_at, block.updated_at) == (moment, moment + timedelta(days=1))


def test_an_unknown_enum_is_refused_with_its_path() -> None:
    message = blocks_pb2.BlockRevision()
    message.operation = 99  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match=r"revisions\[2\].operation has the unknown value 99") as error:
        BlockRevision.from_proto(message, "revisions[2]")
    assert error.value.metadata["field"] == "revisions[2].operation"


def test_an_unknown_enum_of_a_list_is_refused_with_the_path_of_the_list() -> None:
    message = files_service_pb2.FileFilter()
    message.statuses.append(99)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as error:
        FileFilter.from_proto(message, "filter")
    assert error.value.metadata["field"] == "filter.statuses"


def test_numbers_are_those_of_the_own_enum_though_members_are_equal() -> None:
    assert number_of(SourceType.PYTHON) == number_of(CodeLanguage.PYTHON) == 1
    assert (number_of(FileStatus.PENDING), number_of(PackagesState.READY)) == (1, 4)
    assert enum_from_proto(ToolType, 0, "type") is ToolType.CUSTOM
    with pytest.raises(InvalidArgument, match="statuses must be given"):
        enum_from_proto(FileStatus, 0, "statuses")


def test_unspecified_has_the_meaning_of_the_contract() -> None:
    assert BlockRevision.from_proto(blocks_pb2.BlockRevision()).operation is BlockOperation.UPDATE
    updated = BlockRevision(operation=BlockOperation.UPDATE).to_proto()
    assert updated.operation == blocks_pb2.BLOCK_OPERATION_UPDATE


def test_a_time_out_of_range_is_refused_with_its_path() -> None:
    message = blocks_pb2.CoreMemory(
        blocks=[blocks_pb2.Block(), blocks_pb2.Block(create_time=Timestamp(seconds=10**12))]
    )
    with pytest.raises(InvalidArgument) as error:
        CoreMemory.from_proto(message, "memory")
    assert error.value.metadata["field"] == "memory.blocks[1].create_time"


def test_a_oneof_of_messages_is_the_twin_that_is_set() -> None:
    author = AgentAuthor("agent-1", tool_call_id="call-1")
    assert AUTHOR.from_proto(AUTHOR.to_proto(author)) == author
    assert AUTHOR.from_proto(blocks_pb2.Author()) is None
    assert AUTHOR.to_proto(None) == blocks_pb2.Author()
    revision = BlockRevision(author=OwnerAuthor("user-1"))
    assert BlockRevision.from_proto(revision.to_proto()) == revision
    assert BlockRevision().to_proto().HasField("author") is False


def test_a_oneof_of_a_request_is_read_and_written() -> None:
    request = blocks_service_pb2.EditBlockRequest(**fields_of(blocks_service_pb2.EditBlockRequest, AppendEdit("more")))
    assert request.append.text == "more"
    assert set_field(request, "edit") == AppendEdit("more")
    assert set_field(blocks_service_pb2.EditBlockRequest(), "edit") is None
    with pytest.raises(TypeError, match=r"EditBlockRequest has no field for Block"):
        fields_of(blocks_service_pb2.EditBlockRequest, Block())


@dataclass(frozen=True, slots=True)
class StoredBlock(Block):
    """A block with a field that the message does not have."""

    organization_id: str = ""


def test_a_subclass_adds_fields_that_the_message_does_not_have() -> None:
    stored = StoredBlock(label="human", organization_id="org-1")
    assert stored.to_proto() == Block(label="human").to_proto()
    assert StoredBlock.from_proto(stored.to_proto()) == replace(stored, organization_id="")
    assert isinstance(Block.from_proto(stored.to_proto()), Block)
    assert fields_of(blocks_service_pb2.UpdateBlockRequest, stored) == {"block": stored.to_proto()}


def test_a_mask_names_the_changes() -> None:
    block = Block(label="human", description=None, provenance=Provenance(project_id="p"))
    writable = {"label", "description", "create_time", "provenance.project_id"}
    changes = Conversion(blocks_pb2.Block, Block).changes
    mask = FieldMask(paths=["description", "create_time", "provenance.project_id"])
    assert changes(block.to_proto(), mask, writable, "block") == {
        "description": None,
        "created_at": EPOCH,
        "provenance": {"project_id": "p"},
    }
    for paths, text in ((["value"], "update_mask must not name value."), ([], "must name at least one field")):
        with pytest.raises(InvalidArgument, match=text):
            changes(block.to_proto(), FieldMask(paths=paths), writable, "block")


@dataclass(frozen=True, slots=True)
class _Note:
    """A type of a service, with some fields of a block, and others."""

    title: str
    edited_at: datetime | None
    owner: str
    limit: int = 7
    text: str | None = None

    @property
    def hidden(self) -> bool:
        return self.owner == ""


_NOTE = Conversion(blocks_pb2.Block, _Note, label="title", value="text", update_time="edited_at", description=None)


def test_a_type_of_a_service_has_some_fields_of_a_message() -> None:
    note = _NOTE.from_proto(blocks_pb2.Block(label="a", hidden=True), owner="b")
    assert note == _Note("a", None, "b")
    assert _NOTE.to_proto(note, description="c") == blocks_pb2.Block(label="a", limit=7, description="c", hidden=False)
    assert _NOTE.to_proto(_Note("a", None, "")).hidden, "a property is written"
    with pytest.raises(TypeError, match="Block has no field titel"):
        Conversion(blocks_pb2.Block, _Note, titel="title")


def test_the_conversion_of_a_service_is_not_that_of_the_twins() -> None:
    assert type(CoreMemory.from_proto(CoreMemory(blocks=(Block(label="a"),)).to_proto()).blocks[0]) is Block


def test_only_named_fields_are_read() -> None:
    late = blocks_pb2.Block(label="a", update_time=Timestamp(seconds=2**60))
    assert _NOTE.changes(late, FieldMask(paths=["label", "value"]), ("label", "value"), "b") == {
        "title": "a",
        "text": None,
    }
    with pytest.raises(InvalidArgument, match=r"b\.update_time must be a time"):
        _NOTE.changes(late, FieldMask(paths=["update_time"]), ("update_time",), "b")


def test_of_a_message_only_what_callers_write_is_kept() -> None:
    block = blocks_pb2.Block(id="1", label="a")
    block.provenance.project_id, block.provenance.created_by_id = "p", "c"
    kept = written(block, ("label", "provenance.project_id"))
    assert (kept.id, kept.label, kept.provenance.project_id, kept.provenance.created_by_id) == ("", "a", "p", "")
    assert block.id == "1", "the message itself is unchanged"
