"""Errors of services: a refusal is a result for the model, an outage is raised."""

from typing import Any

import pytest
from mnemesh_kit import errors
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.errors import ToolSlotsBusy

from .conftest import Make


def remote(kind: type[errors.MnemeshError], reason: str, **metadata: str) -> errors.MnemeshError:
    """Returns an error as the channel of another service raises it."""
    error = kind("The text of the service.", **metadata)
    error.reason = reason
    return error


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


@pytest.mark.parametrize("kind", [*errors.TEMPORARY, ToolSlotsBusy, errors.Internal])
@pytest.mark.parametrize("name", ["memory_replace", "conversation_search", "archival_memory_insert"])
async def test_unavailable_service_raises(
    tools: BuiltinTools, tiers: Any, call: Make, kind: type[errors.MnemeshError], name: str
) -> None:
    arguments = {"memory_replace": REPLACE_ARGUMENTS, "conversation_search": {"query": "x"}}.get(name, {"content": "x"})
    tiers.refusal = kind("away")
    with pytest.raises(kind):
        await tools.execute(call(name, arguments))


async def test_error_in_trace_is_truncated(tools: BuiltinTools, tiers: Any, call: Make) -> None:
    tiers.refusal = remote(errors.FailedPrecondition, "BLOCK_TEXT_NOT_FOUND", label="human")
    result = await tools.execute(call("memory_replace", {**REPLACE_ARGUMENTS, "old_str": "x" * 5000}))
    assert len(result.stderr[0]) == 1000
    assert "x" * 5000 in result.text
