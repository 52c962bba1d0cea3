"""Built-in tools: their calls of services, the request ids, and their results."""

from typing import Any

import pytest
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.model.core_memory import BlockEdit
from mnemesh_types.blocks import AppendEdit, InsertLineEdit, PatchEdit, ReplaceAllEdit, ReplaceUniqueEdit, RethinkEdit

from .conftest import AUTHOR, EDITED, Make


def test_every_schema_has_a_tool(tools: BuiltinTools) -> None:
    assert set(tools.names) == set(BUILTIN_SCHEMAS)
    assert all(schema.name == name for name, schema in BUILTIN_SCHEMAS.items())


async def test_send_message_has_no_effect(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    result = await tools.execute(call("send_message", message="Hello"))
    assert (result.ok, result.text) == (True, "Sent message successfully.")
    assert tiers.asked == []


@pytest.mark.parametrize(
    ("name", "given", "edit", "text"),
    [
        ("core_memory_append", {"content": "x"}, AppendEdit("x"), ""),
        ("core_memory_replace", {"old_content": "a", "new_content": ""}, ReplaceAllEdit("a", ""), ""),
        ("memory_replace", {"old_str": "a", "new_str": "b"}, ReplaceUniqueEdit("a", "b"), EDITED),
        ("memory_insert", {"new_str": "x"}, InsertLineEdit(-1, "x"), EDITED),
        ("memory_insert", {"new_str": "x", "insert_line": 0}, InsertLineEdit(0, "x"), EDITED),
        ("memory_rethink", {"new_memory": "whole"}, RethinkEdit("whole"), EDITED),
        ("memory_apply_patch", {"patch": "@@\n+x"}, PatchEdit("@@\n+x"), EDITED),
    ],
)
async def test_edit_is_one_effect_of_the_agent(
    tools: BuiltinTools, tiers: Any, call: Make, name: str, given: dict[str, Any], edit: BlockEdit, text: str
) -> None:
    result = await tools.execute(call(name, given, label="human"))
    assert (result.ok, result.text) == (True, text)
    assert tiers.asked == [("edit", "step-1/0/0", AUTHOR, "human", edit)]


@pytest.mark.parametrize(
    ("name", "given", "edit"),
    [
        ("memory_replace", {"old_string": "a", "new_string": "b", "label": "human"}, ReplaceUniqueEdit("a", "b")),
        ("memory_insert", {"new_string": "x", "label": "human"}, InsertLineEdit(-1, "x")),
        (
            "memory",
            {"command": "str_replace", "path": "/memories/human", "old_string": "a", "new_string": "b"},
            ReplaceUniqueEdit("a", "b"),
        ),
    ],
)
async def test_memory_tools_take_the_argument_names_of_letta(
    tools: BuiltinTools, tiers: Any, call: Make, name: str, given: dict[str, Any], edit: BlockEdit
) -> None:
    assert (await tools.execute(call(name, given))).ok
    assert tiers.asked == [("edit", "step-1/0/0", AUTHOR, "human", edit)]


async def test_an_argument_under_two_names_is_refused(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    result = await tools.execute(call("memory_insert", label="human", new_str="x", new_string="y"))
    assert not result.ok
    assert "new_string" in result.text
    assert tiers.asked == []


async def test_rethink_memory_names_its_block_by_another_argument(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    """Agents of earlier systems have this form of memory_rethink."""
    result = await tools.execute(call("rethink_memory", new_memory="whole", target_block_label="human"))
    assert (result.ok, result.text) == (True, EDITED)
    assert tiers.asked == [("edit", "step-1/0/0", AUTHOR, "human", RethinkEdit("whole"))]


async def test_finishing_edits_returns_an_empty_text(tools: BuiltinTools, call: Make) -> None:
    assert (await tools.execute(call("memory_finish_edits"))).text == ""


async def test_invalid_arguments_reach_no_service(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    result = await tools.execute(call("memory_replace", label="human", old_str="a"))
    assert (result.ok, result.text) == (False, "Error: new_str is required for memory_replace")
    assert tiers.asked == []


async def test_archival_insert_is_one_effect_and_returns_an_empty_text(
    tools: BuiltinTools, tiers: Any, call: Make
) -> None:
    result = await tools.execute(call("archival_memory_insert", content="Tea at five.", tags=["food"]))
    assert (result.ok, result.text) == (True, "")
    assert tiers.asked == [("insert", "step-1/0/0", "agent-1", "Tea at five.", ("food",))]
