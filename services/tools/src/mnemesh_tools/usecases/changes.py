"""Changes that several use cases share. Each runs within the caller's transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from mnemesh_tools.errors import ToolNameTaken
from mnemesh_tools.model.tools import Tool, ToolSpec
from mnemesh_tools.store.base import ToolTransaction


def insert_tool(tx: ToolTransaction, tool: Tool) -> Tool:
    """Stores and returns a new tool.

    Raises:
        ToolNameTaken: The organization has a tool with this name.
    """
    if tx.get_tool_by_name(tool.spec.name) is not None:
        raise ToolNameTaken(tool.spec.name)
    tx.insert_tool(tool)
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
