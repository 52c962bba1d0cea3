"""Blocks, tools, identities, groups and folders of Letta as resources of the contracts."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from mnemesh.agents.v1.groups_pb2 import (
    DynamicManager,
    Group,
    ManagerConfig,
    RoundRobinManager,
    SleeptimeManager,
    SupervisorManager,
    SwarmManager,
    VoiceSleeptimeManager,
)
from mnemesh.agents.v1.identities_pb2 import (
    IDENTITY_TYPE_ORG,
    IDENTITY_TYPE_OTHER,
    IDENTITY_TYPE_USER,
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
from mnemesh_kit.unicode import well_formed

from mnemesh_letta.convert.settings import embedder_handle
from mnemesh_letta.convert.values import Row, id_of, json_text, optional_text, timestamp

_TEXT_TYPES: Final = ("text/", "application/json", "application/x-yaml", "application/xml", "application/toml")
_LABEL: Final = re.compile(r"[A-Za-z0-9_\-./]{1,100}")
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_\-./]+")
_IDENTITY_TYPES: Final = {"org": IDENTITY_TYPE_ORG, "user": IDENTITY_TYPE_USER, "other": IDENTITY_TYPE_OTHER}


def block(row: Row, *, tags: Iterable[str] = (), identity_ids: Iterable[str] = ()) -> Block:
    """Returns a block. A limit that its text exceeds, which Letta allows, is raised to the length of the text."""
    value = well_formed(row.get("value") or "")
    result = Block(
        id=id_of(row["id"], "block"),
        label=block_label(row["label"]),
        description=optional_text(row, "description"),
        value=value,
        limit=max(int(row.get("limit") or 0), len(value)),
        read_only=bool(row.get("read_only")),
        revision=row.get("version") or 1,
        tags=tags,
        metadata=json_text(row.get("metadata_", row.get("metadata"))),
        hidden=bool(row.get("hidden")),
        is_template=bool(row.get("is_template")),
        template_name=optional_text(row, "template_name"),
        preserve_on_migration=bool(row.get("preserve_on_migration")),
        identity_ids=identity_ids,
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at") or row.get("created_at")),
    )
    for key in ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id"):
        if row.get(key):
            setattr(result.provenance, key, row[key])
    return result


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
    schema = json_text(row.get("json_schema")) or ""
    if schema and is_stub(row):
        return Tool(
            id=id_of(row["id"], "tool"),
            name=row["name"],
            type=TOOL_TYPE_CLIENT,
            description=optional_text(row, "description"),
            json_schema=schema,
            tags=row.get("tags") or (),
            create_time=timestamp(row.get("created_at")),
            update_time=timestamp(row.get("updated_at") or row.get("created_at")),
        )
    if not row.get("source_code"):
        raise ValueError("the tool has no source code")
    return Tool(
        id=id_of(row["id"], "tool"),
        name=row["name"],
        type=TOOL_TYPE_CUSTOM,
        description=optional_text(row, "description"),
        source_code=well_formed(row["source_code"]),
        source_type=SOURCE_TYPE_TYPESCRIPT if row.get("source_type") == "typescript" else SOURCE_TYPE_PYTHON,
        json_schema=schema,
        args_json_schema=json_text(row.get("args_json_schema")),
        return_char_limit=row.get("return_char_limit") or 0,
        pip_requirements=_requirements(row.get("pip_requirements")),
        npm_requirements=_requirements(row.get("npm_requirements")),
        default_requires_approval=row.get("default_requires_approval"),
        enable_parallel_execution=bool(row.get("enable_parallel_execution")),
        tags=row.get("tags") or (),
        metadata=json_text(row.get("metadata_")),
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at") or row.get("created_at")),
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
    except (SyntaxError, ValueError):
        return True
    return False


def identity(row: Row) -> Identity:
    """Returns an identity."""
    return Identity(
        id=id_of(row["id"], "identity"),
        identifier_key=row["identifier_key"],
        name=row["name"],
        type=_IDENTITY_TYPES.get(row["identity_type"], IDENTITY_TYPE_OTHER),
        properties=[_property(item) for item in row.get("properties") or ()],
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at") or row.get("created_at")),
    )


def folder(row: Row) -> Folder:
    """Returns a folder, without its files."""
    config: Mapping[str, Any] = row.get("embedding_config") or {}
    return Folder(
        id=id_of(row["id"], "source"),
        name=row["name"].replace("/", "-"),
        description=optional_text(row, "description"),
        instructions=optional_text(row, "instructions"),
        metadata=json_text(row.get("metadata_", row.get("metadata"))),
        embedder=embedder_handle(config) or "",
        chunk_size=config.get("embedding_chunk_size") or 0,
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at") or row.get("created_at")),
    )


def file_name(row: Row) -> str:
    """Returns the name of a file here. Letta keeps the text of a document alone: such a file gets the suffix .txt."""
    name = original_name(row)
    return name if str(row.get("file_type") or "text/").startswith(_TEXT_TYPES) else f"{name}.txt"


def original_name(row: Row) -> str:
    """Returns the name under which a file was uploaded to Letta."""
    return PurePosixPath(row.get("original_file_name") or row.get("file_name") or row["id"]).name


def group(row: Row, agent_ids: Iterable[str], shared_block_ids: Iterable[str]) -> Group:
    """Returns a group.

    Args:
        row: a row of `groups`, with the fields of its manager in it.
        agent_ids: the members in order.
        shared_block_ids: the blocks that all of them hold.
    """
    return Group(
        id=id_of(row["id"], "group"),
        description=row.get("description") or "",
        agent_ids=agent_ids,
        shared_block_ids=shared_block_ids,
        manager_config=_manager(row),
        hidden=bool(row.get("hidden")),
        turns_counter=_turns_counter(row),
        last_processed_message_id=row.get("last_processed_message_id"),
        create_time=timestamp(row.get("created_at")),
        update_time=timestamp(row.get("updated_at") or row.get("created_at")),
    )


def _turns_counter(row: Row) -> int | None:
    """Returns the count of turns. An agent file has none: Letta begins with -1 if there is a frequency."""
    count: int | None = row.get("turns_counter")
    return -1 if count is None and row.get("sleeptime_agent_frequency") else count


def _manager(row: Row) -> ManagerConfig:
    manager = id_of(row["manager_agent_id"], "agent") if row.get("manager_agent_id") else ""
    match row.get("manager_type"):
        case "supervisor":
            return ManagerConfig(supervisor=SupervisorManager(manager_agent_id=manager))
        case "dynamic":
            token, turns = row.get("termination_token"), row.get("max_turns")
            dynamic = DynamicManager(manager_agent_id=manager, termination_token=token, max_turns=turns)
            return ManagerConfig(dynamic=dynamic)
        case "sleeptime":
            frequency = row.get("sleeptime_agent_frequency") or None
            sleeptime = SleeptimeManager(manager_agent_id=manager, sleeptime_agent_frequency=frequency)
            return ManagerConfig(sleeptime=sleeptime)
        case "voice_sleeptime":
            voice = VoiceSleeptimeManager(
                manager_agent_id=manager,
                max_message_buffer_length=row.get("max_message_buffer_length"),
                min_message_buffer_length=row.get("min_message_buffer_length"),
            )
            return ManagerConfig(voice_sleeptime=voice)
        case "swarm":
            return ManagerConfig(swarm=SwarmManager())
        case _:
            return ManagerConfig(round_robin=RoundRobinManager(max_turns=row.get("max_turns")))


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
            return IdentityProperty(key=key, json=json_text(value) or "{}")
