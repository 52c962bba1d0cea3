"""Tools of the contract and of Letta's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mnemesh.tools.v1 import tools_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_from_text, metadata, present
from mnemesh_gateway.letta.schemas.tools import Requirement, Tool

_SOURCES: Final = {pb.SOURCE_TYPE_PYTHON: "python", pb.SOURCE_TYPE_TYPESCRIPT: "typescript"}
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


def tool_from_proto(tool: pb.Tool) -> Tool:
    """Returns a tool."""
    builtin = tool.type == pb.TOOL_TYPE_BUILTIN
    return Tool(
        id=tool.id,
        name=tool.name,
        tool_type=tool_type(tool),
        description=present(tool, "description"),
        source_type=_SOURCES.get(tool.source_type, "python" if builtin else "json"),
        source_code=present(tool, "source_code"),
        json_schema=json_from_text(tool.json_schema),
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
    return next((name for name, tools in _BUILTIN_TYPES.items() if tool.name in tools), "letta_memory_core")


def _requirements(requirements: Iterable[pb.PackageRequirement]) -> list[Requirement] | None:
    found = [Requirement(name=item.name, version=present(item, "version")) for item in requirements]
    return found or None
