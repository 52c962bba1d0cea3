"""MCP servers and their tools, of the contract and of Letta's API."""

from __future__ import annotations

from collections.abc import Iterable

from mnemesh.tools.v1 import mcp_servers_pb2 as pb

from mnemesh_gateway.letta.convert.values import json_from_text, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.mcp_servers import McpConfig, McpServer
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


def transport_to_proto(config: McpConfig, current: str | None = None) -> tuple[str, pb.McpServer]:
    """Returns the name of a transport and a server that has it.

    Args:
        config: what the client sends.
        current: the transport of a server that is changed.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.mcp_server_type or current or ("stdio" if config.command else "streamable_http")
    if kind == "stdio":
        if not config.command:
            raise invalid_field("Field required", "body", "config", "command")
        stdio = pb.StdioTransport(command=config.command, args=config.args or (), env=_secrets(config.env))
        return kind, pb.McpServer(stdio=stdio)
    if kind not in ("sse", "streamable_http"):
        message = "Input should be 'stdio', 'sse' or 'streamable_http'"
        raise invalid_field(message, "body", "config", "mcp_server_type")
    if not config.server_url:
        raise invalid_field("Field required", "body", "config", "server_url")
    auth = None
    if config.auth_token is not None:
        auth = pb.HttpAuth(token=pb.McpSecret(value=config.auth_token))
        set_present(auth, header=config.auth_header)
    headers = _secrets(config.custom_headers)
    if kind == "sse":
        return kind, pb.McpServer(sse=pb.SseTransport(url=config.server_url, auth=auth, headers=headers))
    transport = pb.StreamableHttpTransport(url=config.server_url, auth=auth, headers=headers)
    return kind, pb.McpServer(streamable_http=transport)


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
