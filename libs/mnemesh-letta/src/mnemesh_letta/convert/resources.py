"""Blocks, tools, identities, groups and folders of Letta as resources of the contracts."""

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from mnemesh.agents.v1.groups_pb2 import (
    Group,
    ManagerConfig,
)
from mnemesh.agents.v1.identities_pb2 import (
    Identity,
    IdentityProperty,
)
from mnemesh.blocks.v1.blocks_pb2 import Block
from mnemesh.files.v1.files_pb2 import Folder
from mnemesh.tools.v1.tools_pb2 import (
    SOURCE_TYPE_PYTHON,
    SOURCE_TYPE_TYPESCRIPT,
    TOOL_TYPE_CLIENT,
    TOOL_TYPE_CUSTOM,
    PackageRequirement,
    Tool,
)
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.unicode import well_formed

from mnemesh_letta.convert.settings import embedder_handle
from mnemesh_letta.convert.values import IDENTITY_TYPES, ORIGIN, Row, fill, from_row, id_of, json_text

_TEXT_TYPES: Final = ("text/", "application/json", "application/x-yaml", "application/xml", "application/toml")
_LABEL: Final = re.compile(r"[A-Za-z0-9_\-./]{1,100}")
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_\-./]+")
_BUILTIN: Final = {
    "letta_core": ("send_message", "conversation_search", "archival_memory_insert", "archival_memory_search"),
    "letta_memory_core": ("core_memory_append", "core_memory_replace", "memory", "memory_apply_patch"),
    "letta_sleeptime_core": ("memory_finish_edits", "memory_insert", "memory_replace", "memory_rethink"),
    "letta_files_core": ("open_files", "grep_files", "semantic_search_files"),
    "letta_builtin": ("web_search", "run_code", "fetch_webpage"),
    "letta_multi_agent_core": (
        "send_message_to_agent_and_wait_for_reply",
        "send_message_to_agent_async",
        "send_message_to_agents_matching_tags",
    ),
    "letta_voice_sleeptime_core": (
        "finish_rethinking_memory",
        "rethink_user_memory",
        "search_memory",
        "store_memories",
    ),
}
TYPE_OF_BUILTIN: Final = {name: kind for kind, names in _BUILTIN.items() for name in names}
"""Letta's type of each of its tools. Its importer refuses a tool of another type."""
OTHER_BUILTIN: Final = "letta_memory_core"
"""The type of built-in tools that Letta does not have."""


def block(row: Row, *, tags: Iterable[str] = (), identity_ids: Iterable[str] = ()) -> Block:
    """Returns a block. A limit that its text exceeds, which Letta allows, is raised to the length of the text."""
    value = well_formed(row.get("value") or "")
    names = (
        *("description", "read_only", "metadata", "metadata_", "hidden", "is_template", "template_name"),
        *("preserve_on_migration", *ORIGIN),
    )
    return from_row(
        Block,
        row,
        names,
        id=id_of(row["id"], "block"),
        label=block_label(row["label"]),
        value=value,
        limit=max(int(row.get("limit") or 0), len(value)),
        revision=row.get("version") or 1,
        tags=tags,
        identity_ids=identity_ids,
    )


def block_label(label: str) -> str:
    """Returns the label of a block here. Letta takes any text; others and long ones get a digest."""
    if _LABEL.fullmatch(label):
        return label
    digest = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{_NOT_IN_LABELS.sub('_', label)[:80]}-{digest}"


def is_builtin_tool(row: Row) -> bool:
    """Returns whether a tool is one of Letta's own."""
    return str(row.get("tool_type") or "custom").startswith("letta")


def custom_tool(row: Row) -> Tool:
    """Returns a tool that a user wrote. One whose source cannot run is a tool of the client, if it has a schema.

    Raises:
        ValueError: the tool is neither a custom tool nor has it source code.
    """
    if (row.get("tool_type") or "custom") != "custom":
        raise ValueError(f"tools of the type {row['tool_type']} have no code that can run elsewhere")
    id_, names = id_of(row["id"], "tool"), ["name", "description", "json_schema", "tags"]
    if row.get("json_schema") and is_stub(row):
        return from_row(Tool, row, names, id=id_, type=TOOL_TYPE_CLIENT)
    if not row.get("source_code"):
        raise ValueError("the tool has no source code")
    names += ["source_code", "args_json_schema", "return_char_limit", "default_requires_approval"]
    return from_row(
        Tool,
        row,
        (*names, "enable_parallel_execution", "metadata_"),
        id=id_,
        type=TOOL_TYPE_CUSTOM,
        source_type=SOURCE_TYPE_TYPESCRIPT if row.get("source_type") == "typescript" else SOURCE_TYPE_PYTHON,
        pip_requirements=_requirements(row.get("pip_requirements")),
        npm_requirements=_requirements(row.get("npm_requirements")),
    )


def is_runnable(row: Row) -> bool:
    """Returns whether `custom_tool` accepts a custom tool: it has source code, or its client runs it."""
    return bool(row.get("source_code")) or (bool(row.get("json_schema")) and is_stub(row))


def is_stub(row: Row) -> bool:
    """Returns whether a tool has a schema instead of a source, or a source that is neither Python nor TypeScript.

    Letta makes sources for tools that the client runs from their schemas, also where names of arguments forbid it.
    """
    if not row.get("source_code"):
        return True
    if row.get("source_type") == "typescript":
        return False
    try:
        ast.parse(row["source_code"])
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return True
    return False


def identity(row: Row) -> Identity:
    return from_row(
        Identity,
        row,
        ("identifier_key", "name"),
        id=id_of(row["id"], "identity"),
        type=IDENTITY_TYPES.get(row["identity_type"], IDENTITY_TYPES["other"]),
        properties=[_property(item) for item in row.get("properties") or ()],
    )


def folder(row: Row) -> Folder:
    """Returns a folder, without its files."""
    config: Mapping[str, Any] = row.get("embedding_config") or {}
    return from_row(
        Folder,
        row,
        ("description", "instructions", "metadata", "metadata_"),
        id=id_of(row["id"], "source"),
        name=row["name"].replace("/", "-"),
        embedder=embedder_handle(config) or "",
        chunk_size=config.get("embedding_chunk_size") or 0,
    )


def file_name(row: Row) -> str:
    """Returns the name of a file here. Letta keeps the text of a document alone: such a file gets the suffix .txt."""
    name = original_name(row)
    return name if str(row.get("file_type") or "text/").startswith(_TEXT_TYPES) else f"{name}.txt"


def original_name(row: Row) -> str:
    """Returns the name under which a file was uploaded to Letta."""
    return PurePosixPath(row.get("original_file_name") or row.get("file_name") or row["id"]).name


async def upload_text(mnemesh: Mnemesh, folder_id: str, name: str, text: str, request_id: str) -> str:
    """Stores the text of a file in a folder unless it has a file of this name; returns the id of the file."""
    answer = await mnemesh.files.upload(
        folder_id,
        well_formed(text).encode(),
        name=name,
        on_duplicate="skip",
        media_type="text/markdown" if name.endswith(".md") else "text/plain",
        request_id=request_id,
    )
    return answer.file.id


def group(row: Row, agent_ids: Iterable[str], shared_block_ids: Iterable[str]) -> Group:
    """Returns a group.

    Args:
        row: a row of `groups`, with the fields of its manager in it.
        agent_ids: the members in order.
        shared_block_ids: the blocks that all of them hold.
    """
    return from_row(
        Group,
        row,
        ("hidden", "last_processed_message_id"),
        id=id_of(row["id"], "group"),
        description=row.get("description") or "",
        agent_ids=agent_ids,
        shared_block_ids=shared_block_ids,
        manager_config=_manager(row),
        turns_counter=_turns_counter(row),
    )


def _turns_counter(row: Row) -> int | None:
    """Returns the count of turns. An agent file has none: Letta begins with -1 if there is a frequency."""
    count: int | None = row.get("turns_counter")
    return -1 if count is None and row.get("sleeptime_agent_frequency") else count


def _manager(row: Row) -> ManagerConfig:
    config = ManagerConfig()
    kind = str(row.get("manager_type"))
    manager: Any = getattr(config, kind if kind in config.DESCRIPTOR.fields_by_name else "round_robin")
    manager.SetInParent()
    names = ("max_turns", "termination_token", "max_message_buffer_length", "min_message_buffer_length")
    agent_id = row.get("manager_agent_id")
    given = {"manager_agent_id": id_of(agent_id, "agent") if agent_id else None}
    given["sleeptime_agent_frequency"] = row.get("sleeptime_agent_frequency") or None
    fill(manager, {name: row.get(name) for name in names} | given)
    return config


def _requirements(values: Iterable[Mapping[str, Any]] | None) -> list[PackageRequirement]:
    return [PackageRequirement(name=item["name"], version=item.get("version")) for item in values or ()]


def _property(item: Mapping[str, Any]) -> IdentityProperty:
    key, value = item["key"], item.get("value")
    match value:
        case bool():
            return IdentityProperty(key=key, boolean=value)
        case int():
            return IdentityProperty(key=key, integer=value)
        case float():
            return IdentityProperty(key=key, number=value)
        case str():
            return IdentityProperty(key=key, text=well_formed(value))
        case _:
            return IdentityProperty(key=key, json=json_text(value or {}) or "{}")
