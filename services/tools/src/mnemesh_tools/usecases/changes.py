"""Lookups and changes that several use cases share. Each runs within the caller's transaction."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from mnemesh_tools.errors import McpServerNotFound, ToolNameTaken, ToolNotFound
from mnemesh_tools.model.mcp_servers import McpServer
from mnemesh_tools.model.mcp_tools import McpTool, McpToolKey
from mnemesh_tools.model.tools import Tool, ToolSpec
from mnemesh_tools.store.tools import ToolTransaction


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


def insert_tool(tx: ToolTransaction, tool: Tool) -> Tool:
    """Stores and returns a new tool.

    Raises:
        ToolNameTaken: The organization has a tool with this name.
    """
    if tx.get_tool_by_name(tool.spec.name) is not None:
        raise ToolNameTaken(tool.spec.name)
    tx.insert_tools(tool)
    return tool


def update_tool(tx: ToolTransaction, tool: Tool, spec: ToolSpec, subject_id: str, now: datetime) -> Tool:
    """Stores and returns the next revision of `tool`, or returns `tool` if its definition is `spec` already.

    Args:
        tx: The transaction that `tool` was read in.
        tool: The current tool.
        spec: The new definition.
        subject_id: The author of the change.
        now: The time of the change.

    Raises:
        ToolNameTaken: Another tool of the organization has the new name.
    """
    if spec == tool.spec:
        return tool
    other = tx.get_tool_by_name(spec.name)
    if other is not None and other.id != tool.id:
        raise ToolNameTaken(spec.name)
    lock = tool.package_lock if spec.packages_key == tool.spec.packages_key else None
    after = replace(
        tool, spec=spec, revision=tool.revision + 1, updated_at=now, last_updated_by_id=subject_id, package_lock=lock
    )
    tx.update_tool(after)
    return after
