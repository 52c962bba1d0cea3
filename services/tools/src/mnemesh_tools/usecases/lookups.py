"""Lookups that several use cases share. Each reads within the caller's transaction and raises if nothing is found."""

from __future__ import annotations

from mnemesh_tools.errors import ToolNotFound
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
