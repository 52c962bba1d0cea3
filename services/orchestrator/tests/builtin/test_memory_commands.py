"""The commands of the tool `memory`."""

from typing import Any

import pytest
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_types.blocks import Block, InsertLineEdit, ReplaceUniqueEdit

from .conftest import AUTHOR, EDITED, Make

HELD = CoreMemory(
    "agent-1",
    3,
    (
        Block(id="block-1", label="human", value="", limit=10),
        Block(id="block-2", label="policy", value="", limit=10, read_only=True),
    ),
)


@pytest.mark.parametrize(
    ("given", "asked", "text"),
    [
        (
            {"command": "create", "path": "/memories/team/plans", "description": "Plans", "file_text": "none"},
            ("create", "step-1/0/0", "agent-1", Block(label="team_plans", value="none", description="Plans")),
            "Successfully created memory block 'team_plans'",
        ),
        (
            {"command": "create", "path": "/plans", "description": "Plans"},
            ("create", "step-1/0/0", "agent-1", Block(label="plans", value="", description="Plans")),
            "Successfully created memory block 'plans'",
        ),
        (
            {"command": "str_replace", "path": "/memories/human", "old_str": "a", "new_str": "b"},
            ("edit", "step-1/0/0", AUTHOR, "human", ReplaceUniqueEdit("a", "b")),
            EDITED,
        ),
        (
            {"command": "insert", "path": "/memories/human", "insert_text": "x"},
            ("edit", "step-1/0/0", AUTHOR, "human", InsertLineEdit(-1, "x")),
            EDITED,
        ),
        (
            {"command": "insert", "path": "human", "insert_line": 2, "insert_text": "x"},
            ("edit", "step-1/0/0", AUTHOR, "human", InsertLineEdit(2, "x")),
            EDITED,
        ),
        (
            {"command": "delete", "path": "/memories/human"},
            ("detach", "step-1/0/0", "agent-1", "human"),
            "Successfully deleted memory block 'human'",
        ),
        (
            {"command": "rename", "old_path": "/memories/human", "new_path": "/memories/zoe"},
            ("relabel", "step-1/0/0", "block-1", "zoe"),
            "Successfully renamed memory block 'human' to 'zoe'",
        ),
        (
            {"command": "rename", "path": "/memories/human", "description": "About Zoë"},
            ("describe", "step-1/0/0", "block-1", "About Zoë"),
            "Successfully updated description of memory block 'human'",
        ),
    ],
)
async def test_memory_commands(
    tools: BuiltinTools, tiers: Any, call: Make, given: dict[str, Any], asked: tuple[Any, ...], text: str
) -> None:
    tiers.core = HELD
    result = await tools.execute(call("memory", given))
    assert (result.ok, result.text) == (True, text)
    assert tiers.asked == [asked]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"command": "view"},
            "Error: Unknown command 'view'. Supported commands: create, str_replace, insert, delete, rename",
        ),
        ({}, "Error: command is required for memory"),
        ({"command": "create", "description": "x"}, "Error: path is required for create command"),
        ({"command": "create", "path": "/memories/"}, "Error: path is required for create command"),
        ({"command": "create", "path": "x"}, "Error: description is required for create command"),
        ({"command": "str_replace", "path": "x", "old_str": "a"}, "Error: new_str is required for str_replace command"),
        ({"command": "insert", "path": "x"}, "Error: insert_text is required for insert command"),
        ({"command": "delete"}, "Error: path is required for delete command"),
        ({"command": "rename", "path": "human"}, "Error: description is required for rename command"),
        ({"command": "rename", "old_path": "human"}, "Error: new_path is required for rename command"),
        (
            {"command": "rename", "old_path": "x", "new_path": "y"},
            "Block field x does not exist (available sections = human, policy)",
        ),
        (
            {"command": "rename", "old_path": "policy", "new_path": "y"},
            "Error This block is read-only and cannot be edited.",
        ),
        (
            {"command": "rename", "path": "policy", "description": "y"},
            "Error This block is read-only and cannot be edited.",
        ),
        ({"command": "delete", "path": "policy"}, "Error This block is read-only and cannot be edited."),
    ],
)
async def test_refused_memory_commands_change_nothing(
    tools: BuiltinTools, tiers: Any, call: Make, given: dict[str, Any], text: str
) -> None:
    tiers.core = HELD
    result = await tools.execute(call("memory", given))
    assert (result.ok, result.text) == (False, text)
    assert tiers.asked == []


async def test_repeated_rename_or_delete_succeeds(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    tiers.core = CoreMemory("agent-1", 4, (Block(id="block-1", label="zoe", value="", limit=10),))
    renamed = await tools.execute(call("memory", command="rename", old_path="human", new_path="zoe"))
    assert renamed.ok
    deleted = await tools.execute(call("memory", command="delete", path="human"))
    assert deleted.ok
    assert tiers.asked == [("detach", "step-1/0/0", "agent-1", "human")]
