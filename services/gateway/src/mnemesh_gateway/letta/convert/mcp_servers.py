"""MCP servers and their tools, of the contract and of Letta's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from mnemesh.tools.v1 import mcp_servers_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_from_text, metadata, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.mcp_servers import (
    McpConfig,
    McpConfigChanges,
    McpServer,
    OfferedTool,
    SchemaHealth,
    ServerConfig,
    UpdateServerConfig,
)
from mnemesh_gateway.letta.schemas.tools import Tool


def server_from_proto(server: pb.McpServer) -> McpServer:
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


def transport_to_proto(config: McpConfig) -> pb.McpServer:
    """Returns a server with the transport of a request.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.mcp_server_type or ("stdio" if config.command else "streamable_http")
    return _server(kind, config, "body", "config", type_field="mcp_server_type")


def named_server_to_proto(config: ServerConfig) -> pb.McpServer:
    """Returns the server of a request. Without a type, a server with a URL speaks the older HTTP transport.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.type or ("stdio" if config.command else "sse")
    server = _server(kind, config, "body", type_field="type")
    server.name = config.server_name
    return server


def _server(kind: str, config: McpConfig | ServerConfig, *place: str, type_field: str) -> pb.McpServer:
    _valid_kind(kind, *place, type_field)
    server = pb.McpServer()
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


def changed_transport(current: pb.McpServer, changes: McpConfigChanges) -> tuple[str, pb.McpServer]:
    """Returns the name of a transport and a server that has it: the current one with changes.

    Stored secrets have no values in it, which keeps them.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    before = current.WhichOneof("transport") or "streamable_http"
    place = ("body", "config")
    kind = changes.mcp_server_type or before
    _valid_kind(kind, *place, "mcp_server_type")
    server = pb.McpServer()
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


def named_server_from_proto(server: pb.McpServer) -> ServerConfig:
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
        pb.McpSecret(name=name) if not value and name.lower() in shown else pb.McpSecret(name=name, value=value)
        for name, value in (values or {}).items()
    ]
    del secrets[:]
    secrets.extend(written)


def mcp_tool_from_proto(tool: pb.McpTool) -> Tool:
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
    pb.MCP_SCHEMA_STATUS_STRICT: "STRICT_COMPLIANT",
    pb.MCP_SCHEMA_STATUS_NON_STRICT: "NON_STRICT_ONLY",
    pb.MCP_SCHEMA_STATUS_INVALID: "INVALID",
}


def offered_tool_from_proto(tool: pb.McpTool) -> OfferedTool:
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


def _secrets(values: dict[str, str] | None) -> list[pb.McpSecret]:
    return [pb.McpSecret(name=name, value=value) for name, value in (values or {}).items()]


def _names(secrets: Iterable[pb.McpSecret]) -> dict[str, str] | None:
    return {secret.name: secret.value for secret in secrets} or None
