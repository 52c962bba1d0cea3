"""MCP servers and their tools, of the contract and of Letta's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from mnemesh.tools.v1 import mcp_servers_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_from_text, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.mcp_servers import McpConfig, McpConfigChanges, McpServer
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
    kind = _valid_kind(config.mcp_server_type or ("stdio" if config.command else "streamable_http"))
    server = pb.McpServer()
    if kind == "stdio":
        server.stdio.command = _required(config.command, "command")
        server.stdio.args.extend(config.args or ())
        server.stdio.env.extend(_secrets(config.env))
        return server
    transport = getattr(server, kind)
    transport.url = _required(config.server_url, "server_url")
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
    kind = _valid_kind(changes.mcp_server_type or before)
    server = pb.McpServer()
    transport = getattr(server, kind)
    transport.SetInParent()
    if (kind == "stdio") == (before == "stdio"):  # the transports over HTTP have the same fields
        transport.ParseFromString(getattr(current, before).SerializeToString())
    if kind == "stdio":
        transport.command = _required(changes.command or transport.command, "command")
        if changes.args is not None:
            transport.args[:] = changes.args
        _set_secrets(transport.env, changes.env)
        return kind, server
    transport.url = _required(changes.server_url or transport.url, "server_url")
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


def _valid_kind(kind: str) -> str:
    if kind not in ("stdio", "sse", "streamable_http"):
        message = "Input should be 'stdio', 'sse' or 'streamable_http'"
        raise invalid_field(message, "body", "config", "mcp_server_type")
    return kind


def _required(value: str | None, field: str) -> str:
    if not value:
        raise invalid_field("Field required", "body", "config", field)
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


def _secrets(values: dict[str, str] | None) -> list[pb.McpSecret]:
    return [pb.McpSecret(name=name, value=value) for name, value in (values or {}).items()]


def _names(secrets: Iterable[pb.McpSecret]) -> dict[str, str] | None:
    return {secret.name: secret.value for secret in secrets} or None
