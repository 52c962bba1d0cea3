"""Lookups that several use cases share. Each reads within the caller's transaction and raises if nothing is found."""

from __future__ import annotations

from collections.abc import Sequence

from mnemesh_tools.errors import McpServerNotFound, ToolNotFound
from mnemesh_tools.model.mcp_servers import McpServer
from mnemesh_tools.model.mcp_tools import McpTool, McpToolKey
from mnemesh_tools.model.tools import Tool
from mnemesh_tools.store.base import ToolTransaction


def get_tool(tx: ToolTransaction, tool_id: str) -> Tool:
    """Returns the tool with this id.

    Raises:
        ToolNotFound: The organization has no such tool.
    """
    tool = tx.get_tool(tool_id)
    if tool is None:
        raise ToolNotFound(tool_id)
    return tool


def get_tool_by_name(tx: ToolTransaction, name: str) -> Tool:
    """Returns the tool with this name.

    Raises:
        ToolNotFound: The organization has no such tool.
    """
    tool = tx.get_tool_by_name(name)
    if tool is None:
        raise ToolNotFound(name)
    return tool


def in_places(found: Sequence[Tool], ids: Sequence[str], names: Sequence[str]) -> list[Tool | None]:
    """Returns a place for each id, then for each name: its tool, or None if it has none, or another place before."""
    by_id, by_name = {tool.id: tool for tool in found}, {tool.spec.name: tool for tool in found}
    places: list[Tool | None] = []
    seen: set[str] = set()
    for tool_id in ids:
        places.append(None if tool_id in seen else by_id.get(tool_id))
        seen.add(tool_id)
    for name in names:
        tool = by_name.get(name)
        places.append(None if tool is None or tool.id in seen else tool)
        if tool is not None:
            seen.add(tool.id)
    return places


def get_mcp_server(tx: ToolTransaction, server_id: str) -> McpServer:
    """Returns the MCP server with this id.

    Raises:
        McpServerNotFound: The organization has no such server.
    """
    server = tx.mcp.get_server(server_id)
    if server is None:
        raise McpServerNotFound(server_id)
    return server


def get_mcp_tool(tx: ToolTransaction, server_id: str, key: McpToolKey) -> McpTool:
    """Returns a tool of an MCP server.

    Raises:
        McpServerNotFound: The organization has no such server.
        ToolNotFound: The server does not offer the tool.
    """
    get_mcp_server(tx, server_id)
    tool = tx.mcp.get_tool(server_id, tool_id=key.tool_id, name=key.name)
    if tool is None:
        raise ToolNotFound(key.tool_id or key.name or "")
    return tool
