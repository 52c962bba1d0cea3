"""Fields of resources in both directions: objects of the REST API, rows, and messages of the contracts."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1.runs_pb2 import Run
from mnemesh.blocks.v1.blocks_pb2 import Block
from mnemesh_letta.convert.values import fields_of, fill, from_row, shown

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(kw_only=True)
class Shown:
    """As an object of the REST API, which lists its fields."""

    __struct_fields__: ClassVar = (
        "value",
        "label",
        "limit",
        "metadata",
        "template_name",
        "tags",
        "project_id",
        "created_at",
    )
    value: str | None = None
    label: str | None = None
    limit: int | None = None
    metadata: dict[str, Any] | None = None
    template_name: str | None = None
    tags: list[str] | None = None
    project_id: str | None = None
    created_at: datetime | None = None


def test_an_object_is_the_same_after_both_directions() -> None:
    given = Shown(value="Ada", limit=9, metadata={"a": [1]}, tags=["x"], project_id="p", created_at=NOON)
    block = Block(label="human")
    paths = fill(block, given)
    assert set(paths) == {"value", "limit", "metadata", "tags", "provenance.project_id", "create_time"}
    given.label = "human"
    assert shown(Shown, block) == given
    assert shown(Shown, block, value="").value == ""


def test_an_empty_object_clears_what_is_stored_and_an_absent_one_does_not() -> None:
    assert fill(Block(), Shown(metadata={})) == ["metadata"]
    assert fill(Block(), Shown()) == []


def test_times_without_a_zone_are_utc() -> None:
    block = Block()
    fill(block, {"created_at": datetime(2026, 3, 1, 12)})  # noqa: DTZ001
    assert block.create_time.ToDatetime(UTC) == NOON


def test_a_row_gives_the_named_fields_and_its_times() -> None:
    row = {"value": "Ada", "label": "x", "read_only": 1, "metadata_": {}, "created_at": NOON.isoformat()}
    block = from_row(Block, row, ("value", "read_only", "metadata_"), id="block-1")
    assert (block.id, block.value, block.label, block.read_only) == ("block-1", "Ada", "", True)
    assert not block.HasField("metadata")
    assert block.update_time == block.create_time


@pytest.mark.parametrize("given", [{"limit": "many"}, {"value": {"a": 1}}, {"read_only": "yes"}, {"limit": 2**40}])
def test_a_value_of_another_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        fill(Block(), given)


def test_names_of_durations_say_their_unit_and_enums_have_letta_s_names() -> None:
    run = Run(stop_reason=agents_pb2.STOP_REASON_MAX_STEPS)
    run.total_duration.FromMilliseconds(1500)
    found = fields_of(run, "total_duration_ns", "ttft_ns", "stop_reason", "conversation_id")
    assert found == {
        "total_duration_ns": 1_500_000_000,
        "ttft_ns": None,
        "stop_reason": "max_steps",
        "conversation_id": "",
    }
