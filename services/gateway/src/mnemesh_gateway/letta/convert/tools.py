"""Conversions of tools, their rules, and MCP servers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_pb2 as agents_pb
from mnemesh.tools.v1 import execution_service_pb2 as rpc
from mnemesh.tools.v1 import mcp_servers_pb2 as mcp_servers_pb
from mnemesh.tools.v1 import tools_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_from_text, json_to_text, metadata, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.tools import (
    McpConfig,
    McpConfigChanges,
    McpServer,
    OfferedTool,
    Requirement,
    RunSource,
    SchemaHealth,
    ServerConfig,
    Tool,
    ToolFields,
    UpdateServerConfig,
)

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
_OTHER_BUILTIN: Final = "letta_memory_core"
BUILTIN_TYPES: Final = frozenset({*_BUILTIN_TYPES, _OTHER_BUILTIN})
"""Letta's names for the types of built-in tools. Each begins with "letta_"."""
TOOL_TYPES: Final = BUILTIN_TYPES | {"custom", "external_mcp"}
"""Letta's names for the types of tools."""
UNUSED_TYPES: Final = frozenset({"external_composio", "external_langchain", "letta_voice_sleeptime_core"})
"""Letta's names for types that no tool has."""

_LEGACY: Final = {
    "InitToolRule": "run_first",
    "TerminalToolRule": "exit_loop",
    "ContinueToolRule": "continue_loop",
    "ChildToolRule": "constrain_child_tools",
    "ParentToolRule": "parent_last_tool",
    "ConditionalToolRule": "conditional",
    "MaxCountPerStepToolRule": "max_count_per_step",
    "RequiredBeforeExitToolRule": "required_before_exit",
    "RequiresApprovalToolRule": "requires_approval",
}


_SOURCE_TYPES: Final = {name: kind for kind, name in _SOURCES.items()}


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


def rule_from_proto(rule: agents_pb.ToolRule) -> dict[str, Any]:
    """Returns a tool rule in Letta's form."""
    kind = rule.WhichOneof("rule") or ""
    given: Any = getattr(rule, kind)
    found: dict[str, Any] = {"tool_name": given.tool_name, "type": kind, "prompt_template": None}
    match kind:
        case "run_first":
            found["args"] = json_from_text(given.arguments) if given.HasField("arguments") else None
        case "constrain_child_tools":
            nodes = [{"name": node.tool_name, "args": json_from_text(node.arguments)} for node in given.child_arguments]
            found |= {"children": list(given.children), "child_arg_nodes": nodes or None}
        case "parent_last_tool":
            found["children"] = list(given.children)
        case "max_count_per_step":
            found["max_count_limit"] = given.max_count
        case "conditional":
            found |= {
                "default_child": present(given, "default_child"),
                "child_output_mapping": {_output_text(outcome): outcome.child for outcome in given.outcomes},
                "require_output_mapping": given.require_output_mapping,
            }
    return found


def rule_to_proto(rule: dict[str, Any], index: int) -> agents_pb.ToolRule:
    """Returns a tool rule.

    Raises:
        ValidationFailed: the type is unknown, or a field is missing or has the wrong type.
    """
    loc = ("body", "tool_rules", index)
    kind = str(rule.get("type") or _kind_of(rule))
    kind = _LEGACY.get(kind, kind)
    name = rule.get("tool_name")
    if not isinstance(name, str):
        raise invalid_field("Field required", *loc, "tool_name")
    try:
        return _typed(kind, name, rule)
    except KeyError as error:
        raise invalid_field(f"Field required: {error.args[0]}", *loc) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_field(f"A field has the wrong type or value: {error}", *loc) from error


def _typed(kind: str, name: str, rule: dict[str, Any]) -> agents_pb.ToolRule:
    match kind:
        case "exit_loop":
            return agents_pb.ToolRule(exit_loop=agents_pb.ExitLoopRule(tool_name=name))
        case "continue_loop":
            return agents_pb.ToolRule(continue_loop=agents_pb.ContinueLoopRule(tool_name=name))
        case "required_before_exit":
            return agents_pb.ToolRule(required_before_exit=agents_pb.RequiredBeforeExitRule(tool_name=name))
        case "requires_approval":
            return agents_pb.ToolRule(requires_approval=agents_pb.RequiresApprovalRule(tool_name=name))
        case "run_first":
            first = agents_pb.RunFirstRule(tool_name=name)
            set_present(first, arguments=json_to_text(rule.get("args")))
            return agents_pb.ToolRule(run_first=first)
        case "max_count_per_step":
            return agents_pb.ToolRule(
                max_count_per_step=agents_pb.MaxCountPerStepRule(tool_name=name, max_count=rule["max_count_limit"])
            )
        case "parent_last_tool":
            return agents_pb.ToolRule(
                parent_last_tool=agents_pb.ParentLastToolRule(tool_name=name, children=rule["children"])
            )
        case "constrain_child_tools":
            nodes = [
                agents_pb.ChildArguments(tool_name=node["name"], arguments=json_to_text(node.get("args")) or "{}")
                for node in rule.get("child_arg_nodes") or ()
            ]
            child = agents_pb.ConstrainChildToolsRule(tool_name=name, children=rule["children"], child_arguments=nodes)
            return agents_pb.ToolRule(constrain_child_tools=child)
        case "conditional":
            outcomes = [_outcome(text, child) for text, child in rule["child_output_mapping"].items()]
            conditional = agents_pb.ConditionalRule(
                tool_name=name,
                outcomes=outcomes,
                require_output_mapping=bool(rule.get("require_output_mapping")),
            )
            set_present(conditional, default_child=rule.get("default_child"))
            return agents_pb.ToolRule(conditional=conditional)
    raise ValueError(f"type {kind!r} is unknown")


def _kind_of(rule: dict[str, Any]) -> str:
    """Returns the type of a rule that names none, by its fields."""
    if "child_output_mapping" in rule:
        return "conditional"
    if "max_count_limit" in rule:
        return "max_count_per_step"
    return "constrain_child_tools" if "children" in rule else "run_first"


def _outcome(text: str, child: str) -> agents_pb.ConditionalOutcome:
    """Returns an outcome. Keys of JSON are texts: those that name a boolean or an integer mean it."""
    if text in {"true", "True", "false", "False"}:
        return agents_pb.ConditionalOutcome(boolean=text.lower() == "true", child=child)
    if text.lstrip("-").isdecimal():
        return agents_pb.ConditionalOutcome(integer=int(text), child=child)
    return agents_pb.ConditionalOutcome(text=text, child=child)


def _output_text(outcome: agents_pb.ConditionalOutcome) -> str:
    kind = outcome.WhichOneof("output")
    value = getattr(outcome, kind) if kind is not None else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def server_from_proto(server: mcp_servers_pb.McpServer) -> McpServer:
    """Returns a server without the values of its secrets."""
    kind = server.WhichOneof("transport") or "streamable_http"
    shown = McpServer(id=server.id, server_name=server.name, mcp_server_type=kind)
    if kind == "stdio":
        shown.command, shown.args = server.stdio.command, list(server.stdio.args)
        shown.env = _names(server.stdio.env)
        return shown
    transport = server.sse if kind == "sse" else server.streamable_http
    shown.server_url, shown.custom_headers = transport.url, _names(transport.headers)
    shown.auth_header = present(transport.auth, "header") if transport.HasField("auth") else None
    return shown


def transport_to_proto(config: McpConfig) -> mcp_servers_pb.McpServer:
    """Returns a server with the transport of a request.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.mcp_server_type or ("stdio" if config.command else "streamable_http")
    return _server(kind, config, "body", "config", type_field="mcp_server_type")


def named_server_to_proto(config: ServerConfig) -> mcp_servers_pb.McpServer:
    """Returns the server of a request. Without a type, a server with a URL speaks the older HTTP transport.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.type or ("stdio" if config.command else "sse")
    server = _server(kind, config, "body", type_field="type")
    server.name = config.server_name
    return server


def _server(kind: str, config: McpConfig | ServerConfig, *place: str, type_field: str) -> mcp_servers_pb.McpServer:
    _valid_kind(kind, *place, type_field)
    server = mcp_servers_pb.McpServer()
    if kind == "stdio":
        server.stdio.command = _required(config.command, *place, "command")
        server.stdio.args.extend(config.args or ())
        server.stdio.env.extend(_secrets(config.env))
        return server
    transport = getattr(server, kind)
    transport.url = _required(config.server_url, *place, "server_url")
    if config.auth_token is not None:
        transport.auth.token.value = config.auth_token
        set_present(transport.auth, header=config.auth_header)
    transport.headers.extend(_secrets(config.custom_headers))
    return server


def changed_transport(
    current: mcp_servers_pb.McpServer, changes: McpConfigChanges
) -> tuple[str, mcp_servers_pb.McpServer]:
    """Returns the name of a transport and a server that has it: the current one with changes.

    Stored secrets have no values in it, which keeps them.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    before = current.WhichOneof("transport") or "streamable_http"
    place = ("body", "config")
    kind = changes.mcp_server_type or before
    _valid_kind(kind, *place, "mcp_server_type")
    server = mcp_servers_pb.McpServer()
    transport = getattr(server, kind)
    transport.SetInParent()
    if (kind == "stdio") == (before == "stdio"):  # the transports over HTTP have the same fields
        transport.ParseFromString(getattr(current, before).SerializeToString())
    if kind == "stdio":
        transport.command = _required(changes.command or transport.command, *place, "command")
        if changes.args is not None:
            transport.args[:] = changes.args
        _set_secrets(transport.env, changes.env)
        return kind, server
    transport.url = _required(changes.server_url or transport.url, *place, "server_url")
    if changes.auth_token is None:
        transport.ClearField("auth")
    else:
        if changes.auth_token is not msgspec.UNSET:
            transport.auth.token.value = changes.auth_token
            transport.ClearField("oauth")
        if changes.auth_header is not None:
            transport.auth.header = changes.auth_header
    _set_secrets(transport.headers, changes.custom_headers)
    return kind, server


def named_changes(body: UpdateServerConfig) -> McpConfigChanges:
    """Returns the changes of a request that names a server."""
    if body.stdio_config is not None:
        stdio = body.stdio_config
        return McpConfigChanges(mcp_server_type="stdio", command=stdio.command, args=stdio.args or [], env=stdio.env)
    return McpConfigChanges(
        server_url=body.server_url,
        auth_header=body.auth_header,
        auth_token=body.token if body.auth_token is msgspec.UNSET else body.auth_token,
        custom_headers=body.custom_headers,
    )


def named_server_from_proto(server: mcp_servers_pb.McpServer) -> ServerConfig:
    """Returns a server without the values of its secrets, as the paths with its name show it."""
    shown = server_from_proto(server)
    return ServerConfig(
        server_name=shown.server_name,
        type=shown.mcp_server_type,
        command=shown.command,
        args=shown.args,
        env=shown.env,
        server_url=shown.server_url,
        auth_header=shown.auth_header,
        custom_headers=shown.custom_headers,
    )


def _valid_kind(kind: str, *loc: str) -> None:
    if kind not in ("stdio", "sse", "streamable_http"):
        raise invalid_field("Input should be 'stdio', 'sse' or 'streamable_http'", *loc)


def _required(value: str | None, *loc: str) -> str:
    if not value:
        raise invalid_field("Field required", *loc)
    return value


def _set_secrets(secrets: Any, values: dict[str, str] | msgspec.UnsetType | None) -> None:
    """Replaces values by name; an empty one stands for the stored one."""
    if values is msgspec.UNSET:
        return
    shown = {secret.name.lower(): secret for secret in secrets}
    written = [
        mcp_servers_pb.McpSecret(name=name)
        if not value and name.lower() in shown
        else mcp_servers_pb.McpSecret(name=name, value=value)
        for name, value in (values or {}).items()
    ]
    del secrets[:]
    secrets.extend(written)


def mcp_tool_from_proto(tool: mcp_servers_pb.McpTool) -> Tool:
    """Returns a tool of a server."""
    schema = json_from_text(tool.json_schema if tool.HasField("json_schema") else tool.input_schema)
    return Tool(
        id=tool.tool_id,
        name=tool.name,
        tool_type="external_mcp",
        source_type="json",
        description=present(tool, "description"),
        json_schema=schema,
        metadata_={"mcp": {"server_id": tool.mcp_server_id}},
    )


_HEALTH: Final = {
    mcp_servers_pb.MCP_SCHEMA_STATUS_STRICT: "STRICT_COMPLIANT",
    mcp_servers_pb.MCP_SCHEMA_STATUS_NON_STRICT: "NON_STRICT_ONLY",
    mcp_servers_pb.MCP_SCHEMA_STATUS_INVALID: "INVALID",
}


def offered_tool_from_proto(tool: mcp_servers_pb.McpTool) -> OfferedTool:
    """Returns a tool as its server describes it."""
    health = tool.schema_health
    return OfferedTool(
        name=tool.name,
        description=present(tool, "description"),
        input_schema=json_from_text(tool.input_schema) or {},
        output_schema=metadata(tool, "output_schema"),
        annotations=metadata(tool, "annotations"),
        health=SchemaHealth(status=_HEALTH.get(health.status, "INVALID"), reasons=list(health.reasons)),
    )


def _secrets(values: dict[str, str] | None) -> list[mcp_servers_pb.McpSecret]:
    return [mcp_servers_pb.McpSecret(name=name, value=value) for name, value in (values or {}).items()]


def _names(secrets: Iterable[mcp_servers_pb.McpSecret]) -> dict[str, str] | None:
    return {secret.name: secret.value for secret in secrets} or None
