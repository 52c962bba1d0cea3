"""Comparison of what an MCP server lists with what is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from mnemesh_tools.model.mcp_servers import McpContact, McpServer, McpServerStatus
from mnemesh_tools.model.mcp_tools import (
    McpTool,
    RemoteTool,
    SchemaHealth,
    SchemaStatus,
    bounded_tool,
    model_schema,
    new_spec,
    schema_health,
    tool_name,
)
from mnemesh_tools.model.tools import Tool, ToolSpec
from mnemesh_tools.store.base import ToolTransaction
from mnemesh_tools.usecases import changes

_SHOWN: Final = 10
_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Refresh:
    """The server after a refresh, and the tools that the refresh changed."""

    server: McpServer
    added: tuple[McpTool, ...] = ()
    updated: tuple[McpTool, ...] = ()
    removed: tuple[McpTool, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedTool:
    """A tool as its server reports it, bounded, with the health of its schema."""

    remote: RemoteTool
    health: SchemaHealth


def checked(tools: Sequence[RemoteTool]) -> list[CheckedTool]:
    """Returns the tools with the health of each schema. Takes CPU time: not for the event loop."""
    return [CheckedTool(bounded_tool(tool), schema_health(tool)) for tool in tools]


def unusable(tools: Sequence[CheckedTool], problems: Sequence[str]) -> str | None:
    """Returns which tools of a server cannot be offered to models, and why; None if all can.

    Args:
        tools: The tools that are stored.
        problems: Why others are not.
    """
    named = [
        f"{tool.remote.name} ({' '.join(tool.health.reasons).rstrip('.')})"
        for tool in tools
        if tool.health.status is SchemaStatus.INVALID
    ]
    found = [*named, *problems]
    if not found:
        return None
    shown = "; ".join(text[:_SHOWN_CHARS] for text in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{len(found)} of {len(tools) + len(problems)} tools cannot be offered to models: {shown}{more}."


class ListingWriter:
    """Stores what a server lists, within the caller's transaction."""

    def __init__(
        self, tx: ToolTransaction, server: McpServer, subject_id: str, now: datetime, new_id: Callable[[str], str]
    ) -> None:
        self._tx = tx
        self._server = server
        self._subject_id = subject_id
        self._now = now
        self._new_id = new_id

    def write(self, tools: Sequence[CheckedTool], protocol_version: str, problems: Sequence[str]) -> Refresh:
        """Adds new tools, overwrites changed ones under their ids, and deletes those that are missing."""
        known = {tool.remote.name: tool for tool in self._tx.mcp.get_tools(self._server.id)}
        added, updated = [], []
        for item in tools:
            before = known.pop(item.remote.name, None)
            after = self._written(item, before)
            if before is None:
                added.append(after)
            elif before.remote != after.remote:
                updated.append(after)
        removed = list(known.values())
        self._tx.mcp.delete_tools([tool.tool_id for tool in removed])
        for tool in removed:
            self._tx.delete_tool(tool.tool_id)
        contact = McpContact(
            status=McpServerStatus.REACHABLE,
            message=unusable(tools, problems),
            contact_at=self._now,
            refresh_at=self._now,
            tool_count=len(tools),
            protocol_version=protocol_version,
        )
        server = replace(self._server, contact=contact)
        self._tx.mcp.update_server(server)
        return Refresh(server, tuple(added), tuple(updated), tuple(removed))

    def _written(self, item: CheckedTool, before: McpTool | None) -> McpTool:
        tool_id = self._new_id("tool") if before is None else before.tool_id
        changed = before is None or before.remote != item.remote
        settings = None if before is None else before.owner_settings
        if item.health.status is SchemaStatus.INVALID:
            schema, settings = None, self._withdrawn(tool_id) or settings
        else:
            schema, settings = self._attachable(tool_id, item, settings, changed=changed), None
        after = McpTool(
            tool_id=tool_id,
            server_id=self._server.id,
            remote=item.remote,
            json_schema=schema,
            owner_settings=settings,
            status=item.health.status,
            reasons=item.health.reasons,
            created_at=self._now if before is None else before.created_at,
            updated_at=self._now if before is None or changed else before.updated_at,
        )
        if after != before:
            self._tx.mcp.put_tool(after)
        return after

    def _withdrawn(self, tool_id: str) -> ToolSpec | None:
        """Deletes the definition of a tool whose schema is invalid, and returns what its owner had set."""
        stored = self._tx.get_tool(tool_id)
        if stored is None:
            return None
        self._tx.delete_tool(tool_id)
        return replace(stored.spec, secrets=())

    def _attachable(self, tool_id: str, item: CheckedTool, settings: ToolSpec | None, *, changed: bool) -> str:
        """Writes the definition that agents attach, and returns its schema.

        The owner's settings of the definition stay, such as the approval and the limits: those of `settings` if the
        schema was invalid before.
        """
        stored = self._tx.get_tool(tool_id)
        if stored is None:
            if settings is not None and self._is_free(settings.name):
                name = settings.name
            else:
                name = tool_name(item.remote.name, self._server.name, self._is_free)
            spec = new_spec(self._server.id, name, item.remote)
            if settings is not None:
                spec = replace(settings, name=name, json_schema=spec.json_schema)
            self._tx.insert_tool(self._definition(tool_id, spec))
            return spec.json_schema
        if changed:
            schema = model_schema(stored.spec.name, item.remote)
            merged = replace(stored.spec, json_schema=schema)
            changes.update_tool(self._tx, stored, merged, self._subject_id, self._now)
            return schema
        return stored.spec.json_schema

    def _is_free(self, name: str) -> bool:
        return self._tx.get_tool_by_name(name) is None

    def _definition(self, tool_id: str, spec: ToolSpec) -> Tool:
        return Tool(
            id=tool_id,
            organization_id=self._server.organization_id,
            spec=spec,
            revision=1,
            created_at=self._now,
            updated_at=self._now,
            created_by_id=self._subject_id,
            last_updated_by_id=self._subject_id,
        )
