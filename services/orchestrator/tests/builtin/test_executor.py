"""Built-in tools: their calls of services, the request ids, and their results."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mnemesh_kit import errors
from mnemesh_orchestrator.builtin.executor import BuiltinCall, BuiltinTools
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.builtin.search import time_ago
from mnemesh_orchestrator.model.core_memory import (
    AgentAuthor,
    Append,
    Block,
    BlockEdit,
    CoreMemory,
    InsertLine,
    NewBlock,
    Patch,
    ReplaceAll,
    ReplaceUnique,
    Rethink,
)

Make = Callable[..., BuiltinCall]
AUTHOR = AgentAuthor("agent-1", "call-1", "run-1")
NOW = datetime(2026, 1, 20, 12, 0, tzinfo=UTC)
EDITED = (
    "The core memory block with label `human` has been edited. Review the changes and make sure they are as expected "
    "(correct indentation, no duplicate lines, etc). Edit the memory block again if necessary."
)


def remote(kind: type[errors.MnemeshError], reason: str, **metadata: str) -> errors.MnemeshError:
    """Returns an error as the channel of another service raises it."""
    error = kind("The text of the service.", **metadata)
    error.reason = reason
    return error


def test_every_schema_has_a_tool(tools: BuiltinTools) -> None:
    assert set(tools.names) == set(BUILTIN_SCHEMAS)
    assert tools.schema("memory").name == "memory"


async def test_send_message_has_no_effect(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    result = await tools.execute(call("send_message", message="Hello"))
    assert (result.ok, result.text) == (True, "Sent message successfully.")
    assert tiers.asked == []


@pytest.mark.parametrize(
    ("name", "given", "edit", "text"),
    [
        ("core_memory_append", {"content": "x"}, Append("x"), ""),
        ("core_memory_replace", {"old_content": "a", "new_content": ""}, ReplaceAll("a", ""), ""),
        ("memory_replace", {"old_str": "a", "new_str": "b"}, ReplaceUnique("a", "b"), EDITED),
        ("memory_insert", {"new_str": "x"}, InsertLine(-1, "x"), EDITED),
        ("memory_insert", {"new_str": "x", "insert_line": 0}, InsertLine(0, "x"), EDITED),
        ("memory_rethink", {"new_memory": "whole"}, Rethink("whole"), EDITED),
        ("memory_apply_patch", {"patch": "@@\n+x"}, Patch("@@\n+x"), EDITED),
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
        ("memory_replace", {"old_string": "a", "new_string": "b", "label": "human"}, ReplaceUnique("a", "b")),
        ("memory_insert", {"new_string": "x", "label": "human"}, InsertLine(-1, "x")),
        (
            "memory",
            {"command": "str_replace", "path": "/memories/human", "old_string": "a", "new_string": "b"},
            ReplaceUnique("a", "b"),
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
    assert tiers.asked == [("edit", "step-1/0/0", AUTHOR, "human", Rethink("whole"))]


async def test_finishing_edits_returns_an_empty_text(tools: BuiltinTools, call: Make) -> None:
    assert (await tools.execute(call("memory_finish_edits"))).text == ""


PREFIX = (
    "{} contains a line number prefix, which is not allowed. Do not include line numbers when calling memory tools "
    "(line numbers are for display purposes only)."
)
REPLACE_ARGUMENTS = {"label": "human", "old_str": "tea", "new_str": "coffee"}
REFUSALS = [
    (
        "memory_replace",
        REPLACE_ARGUMENTS,
        remote(errors.FailedPrecondition, "BLOCK_READ_ONLY", label="human"),
        "Error This block is read-only and cannot be edited.",
    ),
    (
        "memory_replace",
        REPLACE_ARGUMENTS,
        remote(errors.InvalidArgument, "BLOCK_LINE_NUMBER_PREFIX", field="replace_unique.old_text"),
        PREFIX.format("old_str"),
    ),
    (
        "memory_replace",
        REPLACE_ARGUMENTS,
        remote(errors.FailedPrecondition, "BLOCK_TEXT_NOT_FOUND", label="human"),
        "No replacement was performed, old_str `tea` did not appear verbatim in memory block with label `human`.",
    ),
    (
        "memory_replace",
        REPLACE_ARGUMENTS,
        remote(errors.FailedPrecondition, "BLOCK_TEXT_AMBIGUOUS", label="human", lines="1,3"),
        (
            "No replacement was performed. Multiple occurrences of old_str `tea` in lines [1, 3]. "
            "Please ensure it is unique."
        ),
    ),
    (
        "core_memory_replace",
        {"label": "human", "old_content": "tea", "new_content": "x"},
        remote(errors.FailedPrecondition, "BLOCK_TEXT_NOT_FOUND", label="human"),
        "Old content 'tea' not found in memory block 'human'",
    ),
    (
        "memory_insert",
        {"label": "human", "new_str": "1→ x", "insert_line": 1},
        remote(errors.InvalidArgument, "BLOCK_LINE_NUMBER_PREFIX", field="insert_line.text"),
        PREFIX.format("new_str"),
    ),
    (
        "memory_insert",
        {"label": "human", "new_str": "x", "insert_line": 9},
        remote(errors.InvalidArgument, "BLOCK_LINE_OUT_OF_RANGE", line="9", lines="2"),
        (
            "Invalid `insert_line` parameter: 9. It should be within the range of lines of the memory block: [0, 2], "
            "or -1 to append to the end of the memory block."
        ),
    ),
    (
        "memory_rethink",
        {"label": "human", "new_memory": "x"},
        remote(errors.FailedPrecondition, "BLOCK_LIMIT_EXCEEDED", label="human", limit="20", size="33"),
        "Edit failed: Exceeds 20 character limit (requested 33)",
    ),
    (
        "memory_apply_patch",
        {"label": "human", "patch": "x"},
        remote(errors.InvalidArgument, "BLOCK_LINE_NUMBER_PREFIX", field="patch.patch"),
        PREFIX.format("Patch"),
    ),
    (
        "memory_apply_patch",
        {"label": "human", "patch": "x"},
        remote(errors.FailedPrecondition, "BLOCK_PATCH_FAILED"),
        "The text of the service.",
    ),
    (
        "core_memory_append",
        {"label": "humen", "content": "x"},
        remote(errors.NotFound, "BLOCK_LABEL_NOT_FOUND", label="humen", labels="human,persona"),
        "Block field humen does not exist (available sections = human, persona)",
    ),
    (
        "memory",
        {"command": "create", "path": "/memories/human", "description": "x"},
        remote(errors.AlreadyExists, "BLOCK_LABEL_TAKEN", label="human", agent_id="agent-1"),
        "There is already a memory block with label `human`.",
    ),
    (
        "memory",
        {"command": "insert", "path": "human", "insert_text": "1→ x"},
        remote(errors.InvalidArgument, "BLOCK_LINE_NUMBER_PREFIX", field="insert_line.text"),
        PREFIX.format("insert_text"),
    ),
    (
        "conversation_search",
        {"query": "x", "end_date": "soon"},
        remote(errors.InvalidArgument, "INVALID_ARGUMENT", field="end_date"),
        "Invalid end_date format: soon. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)",
    ),
    (
        "archival_memory_search",
        {"query": "x", "start_datetime": "soon"},
        remote(errors.InvalidArgument, "INVALID_ARGUMENT", field="filter.start_date"),
        "Invalid start_datetime format: soon. Use ISO 8601 format (YYYY-MM-DD or YYYY-MM-DDTHH:MM)",
    ),
    (
        "conversation_search",
        {"query": "x", "queries": ["y"] * 10},
        errors.InvalidArgument("further_queries must be at most 9.", field="further_queries"),
        "queries must be at most 9.",
    ),
    (
        "conversation_search",
        {"query": "x", "speakers": [" "]},
        errors.InvalidArgument("speakers[0] must not be blank.", field="speakers[0]"),
        "speakers: speakers[0] must not be blank.",
    ),
    (
        "conversation_search",
        {"query": "x", "surrounding": -1},
        errors.InvalidArgument("messages_before must be between 0 and 10.", field="messages_before"),
        "surrounding must be between 0 and 10.",
    ),
    (
        "archival_memory_search",
        {"query": "x", "surrounding": 11},
        errors.InvalidArgument("passages_before must be between 0 and 10.", field="passages_before"),
        "surrounding must be between 0 and 10.",
    ),
    (
        "archival_memory_insert",
        {"content": " "},
        remote(errors.InvalidArgument, "INVALID_ARGUMENT", field="passages[0].text"),
        "content: The text of the service.",
    ),
    (
        "archival_memory_insert",
        {"content": "x"},
        remote(errors.Unavailable, "EMBEDDER_UNAVAILABLE", embedder="acme/embed-1"),
        (
            "Archival memory cannot be used at the moment: its embedding service does not answer. Nothing was stored. "
            "Try again later."
        ),
    ),
    (
        "memory_rethink",
        {"label": "human", "new_memory": "x"},
        remote(errors.Aborted, "ABORTED"),
        "The text of the service.",
    ),
]


@pytest.mark.parametrize(("name", "given", "error", "text"), REFUSALS, ids=lambda value: getattr(value, "reason", None))
async def test_refusal_of_a_service_is_a_result_for_the_model(
    tools: BuiltinTools, tiers: Any, call: Make, name: str, given: dict[str, Any], error: errors.MnemeshError, text: str
) -> None:
    tiers.refusal = error
    result = await tools.execute(call(name, given))
    assert (result.ok, result.text) == (False, text)
    assert result.stderr == (f"Error executing function {name}: {error.reason}: {text}",)


@pytest.mark.parametrize("kind", [errors.Unavailable, errors.DeadlineExceeded, errors.Internal])
@pytest.mark.parametrize("name", ["memory_replace", "conversation_search", "archival_memory_insert"])
async def test_unavailable_service_raises(
    tools: BuiltinTools, tiers: Any, call: Make, kind: type[errors.MnemeshError], name: str
) -> None:
    arguments = {"memory_replace": REPLACE_ARGUMENTS, "conversation_search": {"query": "x"}}.get(name, {"content": "x"})
    tiers.refusal = kind("away")
    with pytest.raises(kind):
        await tools.execute(call(name, arguments))


async def test_invalid_arguments_reach_no_service(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    result = await tools.execute(call("memory_replace", label="human", old_str="a"))
    assert (result.ok, result.text) == (False, "Error: new_str is required for memory_replace")
    assert tiers.asked == []


async def test_error_in_trace_is_truncated(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    tiers.refusal = remote(errors.FailedPrecondition, "BLOCK_TEXT_NOT_FOUND", label="human")
    result = await tools.execute(call("memory_replace", {**REPLACE_ARGUMENTS, "old_str": "x" * 5000}))
    assert len(result.stderr[0]) == 1000
    assert "x" * 5000 in result.text


HELD = CoreMemory(
    "agent-1",
    3,
    (Block("block-1", "human", "", 10), Block("block-2", "policy", "", 10, read_only=True)),
)


@pytest.mark.parametrize(
    ("given", "asked", "text"),
    [
        (
            {"command": "create", "path": "/memories/team/plans", "description": "Plans", "file_text": "none"},
            ("create", "step-1/0/0", "agent-1", NewBlock("team_plans", "none", "Plans")),
            "Successfully created memory block 'team_plans'",
        ),
        (
            {"command": "create", "path": "/plans", "description": "Plans"},
            ("create", "step-1/0/0", "agent-1", NewBlock("plans", "", "Plans")),
            "Successfully created memory block 'plans'",
        ),
        (
            {"command": "str_replace", "path": "/memories/human", "old_str": "a", "new_str": "b"},
            ("edit", "step-1/0/0", AUTHOR, "human", ReplaceUnique("a", "b")),
            EDITED,
        ),
        (
            {"command": "insert", "path": "/memories/human", "insert_text": "x"},
            ("edit", "step-1/0/0", AUTHOR, "human", InsertLine(-1, "x")),
            EDITED,
        ),
        (
            {"command": "insert", "path": "human", "insert_line": 2, "insert_text": "x"},
            ("edit", "step-1/0/0", AUTHOR, "human", InsertLine(2, "x")),
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
    tiers.core = CoreMemory("agent-1", 4, (Block("block-1", "zoe", "", 10),))
    renamed = await tools.execute(call("memory", command="rename", old_path="human", new_path="zoe"))
    assert renamed.ok
    deleted = await tools.execute(call("memory", command="delete", path="human"))
    assert deleted.ok
    assert tiers.asked == [("detach", "step-1/0/0", "agent-1", "human")]


async def test_archival_insert_is_one_effect_and_returns_an_empty_text(
    tools: BuiltinTools, tiers: Any, call: Make
) -> None:
    result = await tools.execute(call("archival_memory_insert", content="Tea at five.", tags=["food"]))
    assert (result.ok, result.text) == (True, "")
    assert tiers.asked == [("insert", "step-1/0/0", "agent-1", "Tea at five.", ("food",))]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s ago"),
        (0, "0s ago"),
        (59, "59s ago"),
        (60, "1m ago"),
        (3599, "59m ago"),
        (3600, "1h ago"),
        (86_399, "23h ago"),
        (86_400, "1d ago"),
        (864_000, "10d ago"),
    ],
)
def test_time_ago_uses_largest_whole_unit(seconds: int, text: str) -> None:
    assert time_ago(NOW - timedelta(seconds=seconds), NOW) == text
