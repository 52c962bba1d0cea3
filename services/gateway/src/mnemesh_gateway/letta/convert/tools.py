"""Tools of the contract and of Letta's API."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from mnemesh.tools.v1 import execution_service_pb2 as rpc
from mnemesh.tools.v1 import tools_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_from_text, json_to_text, metadata, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.tools import Requirement, RunSource, Tool, ToolFields

_SOURCES: Final = {pb.SOURCE_TYPE_PYTHON: "python", pb.SOURCE_TYPE_TYPESCRIPT: "typescript"}
_SOURCE_TYPES: Final = {name: kind for kind, name in _SOURCES.items()}
_BUILTIN_TYPES: Final = {
    "letta_core": {"send_message", "conversation_search", "archival_memory_insert", "archival_memory_search"},
    "letta_multi_agent_core": {
        "send_message_to_agent_and_wait_for_reply",
        "send_message_to_agent_async",
        "send_message_to_agents_matching_tags",
    },
    "letta_files_core": {"open_files", "grep_files", "semantic_search_files"},
    "letta_builtin": {"run_code", "web_search", "fetch_webpage"},
    "letta_sleeptime_core": {"store_memories", "rethink_user_memory", "finish_rethinking_memory"},
}


_OTHER_BUILTIN: Final = "letta_memory_core"
BUILTIN_TYPES: Final = frozenset({*_BUILTIN_TYPES, _OTHER_BUILTIN})
"""Letta's names for the types of built-in tools. Each begins with "letta_"."""
TOOL_TYPES: Final = BUILTIN_TYPES | {"custom", "external_mcp"}
"""Letta's names for the types of tools."""
UNUSED_TYPES: Final = frozenset({"external_composio", "external_langchain", "letta_voice_sleeptime_core"})
"""Letta's names for types that no tool has."""


def tool_from_proto(tool: pb.Tool) -> Tool:
    """Returns a tool."""
    builtin = tool.type == pb.TOOL_TYPE_BUILTIN
    schema = json_from_text(tool.json_schema) or {}
    return Tool(
        id=tool.id,
        name=tool.name,
        tool_type=tool_type(tool),
        description=present(tool, "description") or schema.get("description"),
        source_type=_SOURCES.get(tool.source_type, "python" if builtin else "json"),
        source_code=present(tool, "source_code"),
        json_schema=schema or None,
        args_json_schema=metadata(tool, "args_json_schema"),
        tags=list(tool.tags),
        return_char_limit=tool.return_char_limit,
        pip_requirements=_requirements(tool.pip_requirements),
        npm_requirements=_requirements(tool.npm_requirements),
        default_requires_approval=present(tool, "default_requires_approval"),
        enable_parallel_execution=tool.enable_parallel_execution,
        created_by_id=tool.provenance.created_by_id or None,
        last_updated_by_id=tool.provenance.last_updated_by_id or None,
        metadata_=metadata(tool) or {},
        project_id=present(tool.provenance, "project_id"),
    )


def tool_type(tool: pb.Tool) -> str:
    """Returns Letta's name for the type of a tool."""
    if tool.type == pb.TOOL_TYPE_MCP:
        return "external_mcp"
    if tool.type != pb.TOOL_TYPE_BUILTIN:
        return "custom"
    return next((name for name, tools in _BUILTIN_TYPES.items() if tool.name in tools), _OTHER_BUILTIN)


def _requirements(requirements: Iterable[pb.PackageRequirement]) -> list[Requirement] | None:
    found = [Requirement(name=item.name, version=present(item, "version")) for item in requirements]
    return found or None


def fields_to_proto(body: ToolFields, message: pb.Tool) -> list[str]:
    """Sets the fields that a body has; returns their paths.

    Raises:
        ValidationFailed: the type of the source is unknown.
    """
    source_type = source_type_to_proto(body.source_type, "body", "source_type") if body.source_type else None
    plain = {
        "description": body.description,
        "source_code": body.source_code,
        "source_type": source_type,
        "json_schema": json_to_text(body.json_schema),
        "args_json_schema": json_to_text(body.args_json_schema),
        "return_char_limit": body.return_char_limit,
        "default_requires_approval": body.default_requires_approval,
        "enable_parallel_execution": body.enable_parallel_execution,
        "metadata": json_to_text(body.metadata_),
    }
    set_present(message, **plain)
    paths = [name for name, value in plain.items() if value is not None]
    if body.tags is not None:
        message.tags.extend(body.tags)
        paths.append("tags")
    for name in ("pip_requirements", "npm_requirements"):
        requirements: list[Requirement] | None = getattr(body, name)
        if requirements is not None:
            getattr(message, name).extend(_packages(requirements))
            paths.append(name)
    return paths


def source_type_to_proto(name: str | None, *loc: str) -> pb.SourceType.ValueType:
    """Returns the type of source code; Python without a name. Raises ValidationFailed if the type is unknown."""
    if name is not None and name not in _SOURCE_TYPES:
        raise invalid_field("Input should be 'python' or 'typescript'", *loc)
    return _SOURCE_TYPES[name or "python"]


def trial_to_proto(body: RunSource, execution_id: str) -> rpc.ExecuteToolRequest:
    """Returns the request that runs source code once. Raises ValidationFailed if the type of the source is unknown."""
    tool = rpc.AdHocTool(
        source_code=body.source_code,
        source_type=source_type_to_proto(body.source_type, "body", "source_type"),
        pip_requirements=_packages(body.pip_requirements),
        npm_requirements=_packages(body.npm_requirements),
    )
    set_present(tool, name=body.name, args_json_schema=json_to_text(body.args_json_schema))
    return rpc.ExecuteToolRequest(
        execution_id=execution_id,
        ad_hoc=tool,
        arguments=json_to_text(body.args) or "{}",
        environment=body.env_vars or {},
    )


def return_of_trial(response: rpc.ExecuteToolResponse, started: datetime) -> dict[str, Any]:
    """Returns the message with the result of source code that ran once. Its id is that of no stored message."""
    status = "success" if response.status == rpc.EXECUTION_STATUS_SUCCESS else "error"
    found = {
        "status": status,
        "tool_return": response.result,
        "stdout": [response.stdout] if response.stdout else None,
        "stderr": [response.stderr] if response.stderr else None,
        "tool_call_id": "null",
    }
    head = {"id": "null", "date": started, "message_type": "tool_return_message"}
    return head | found | {"tool_returns": [found | {"type": "tool"}]}


def _packages(requirements: list[Requirement] | None) -> list[pb.PackageRequirement]:
    return [pb.PackageRequirement(name=item.name, version=item.version) for item in requirements or ()]
