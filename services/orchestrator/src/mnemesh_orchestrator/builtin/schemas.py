"""The schemas of the built-in tools, which the tools service lists too, and the arguments that the loop adds."""

from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import msgspec

from mnemesh_orchestrator.model.models import ToolSchema

RUN_CODE: Final = "run_code"
RUN_CODE_WITH_TOOLS: Final = "run_code_with_tools"
CODE_TOOL_NAMES: Final = frozenset({RUN_CODE, RUN_CODE_WITH_TOOLS})
AGENT_MESSAGE_TOOLS: Final = frozenset(
    {
        "send_message_to_agent_and_wait_for_reply",
        "send_message_to_agent_async",
        "send_message_to_agents_matching_tags",
        "send_message_to_all_agents_in_group",
    }
)
"""The tools that start runs of other agents."""
HEARTBEAT: Final = "request_heartbeat"
THINKING: Final = "thinking"

_FILE: Final = resources.files("mnemesh_types").joinpath("builtin_tools.json")
BUILTIN_SCHEMAS: Final[Mapping[str, ToolSchema]] = {
    schema.name: schema for schema in msgspec.json.decode(_FILE.read_bytes(), type=list[ToolSchema])
}
"""Every built-in tool by its name, as models see it, without the arguments that mnemesh adds."""


def with_heartbeat(schema: ToolSchema) -> ToolSchema:
    """Returns the tool with a required argument that asks for another step. Not for tools that end a turn."""
    if HEARTBEAT in schema.parameters.get("properties", {}):
        return schema
    description = "True to get another step when this tool has returned; false to rest until the next event."
    added = {HEARTBEAT: {"type": "boolean", "description": description}}
    properties = {**schema.parameters.get("properties", {}), **added}
    required = [*schema.parameters.get("required", ()), HEARTBEAT]
    return _with_parameters(schema, properties, required)


def with_thinking(schema: ToolSchema) -> ToolSchema:
    """Returns the tool with a required first argument for the model's thoughts, unless it has one already."""
    if THINKING in schema.parameters.get("properties", {}):
        return schema
    description = "Your inner monologue, which only you read: what you know, what you want, and why you act."
    added = {THINKING: {"type": "string", "description": description}}
    properties = {**added, **schema.parameters.get("properties", {})}
    required = [THINKING, *schema.parameters.get("required", ())]
    return _with_parameters(schema, properties, required)


def _with_parameters(schema: ToolSchema, properties: Mapping[str, Any], required: list[str]) -> ToolSchema:
    parameters = {**schema.parameters, "type": "object", "properties": properties, "required": required}
    return ToolSchema(schema.name, schema.description, parameters)
