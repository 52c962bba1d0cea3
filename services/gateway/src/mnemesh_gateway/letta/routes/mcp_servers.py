"""MCP servers: create, retrieve, list, update, delete, refresh, and their tools."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from mnemesh.tools.v1 import mcp_servers_pb2
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import MnemeshError
from starlette.responses import Response

from mnemesh_gateway.letta.convert.mcp_servers import (
    changed_transport,
    mcp_tool_from_proto,
    server_from_proto,
    transport_to_proto,
)
from mnemesh_gateway.letta.convert.parts import text_of
from mnemesh_gateway.letta.convert.values import json_to_text
from mnemesh_gateway.letta.operations import NO_CONTENT, Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.routes.mcp_connections import contact_stream
from mnemesh_gateway.letta.schemas.agent_parts import ToolResult
from mnemesh_gateway.letta.schemas.mcp_servers import (
    CreateMcpServer,
    McpConfigChanges,
    McpServer,
    Refreshed,
    RefreshQuery,
    RunMcpTool,
    UpdateMcpServer,
)
from mnemesh_gateway.letta.schemas.tools import Tool

operations = Operations()
_SECONDS: Final = 120.0
_CONTACT_SECONDS: Final = 30.0
_EVERY: Final = PageQuery(limit=10_000)


@operations.post("/mcp-servers/", body=CreateMcpServer, result=McpServer)
async def mcp_create_mcp_server(call: Call[NoQuery, CreateMcpServer]) -> McpServer:
    """Creates an MCP server and reads its tools. If it cannot be reached, a refresh reads them later."""
    server = transport_to_proto(call.body.config)
    server.name = call.body.server_name
    return server_from_proto(await created_server(call, server))


@operations.get("/mcp-servers/", result=list[McpServer])
async def mcp_list_mcp_servers(call: Call[NoQuery, None]) -> list[McpServer]:
    """Lists all MCP servers, oldest first."""
    return [server_from_proto(server) for server in await all_servers(call)]


@operations.get("/mcp-servers/{mcp_server_id}", result=McpServer)
async def mcp_get_mcp_server(call: Call[NoQuery, None]) -> McpServer:
    """Returns an MCP server."""
    return server_from_proto(await _server(call))


@operations.patch("/mcp-servers/{mcp_server_id}", body=UpdateMcpServer, result=McpServer)
async def mcp_update_mcp_server(call: Call[NoQuery, UpdateMcpServer]) -> McpServer:
    """Updates the name and the settings of an MCP server. What the request does not name stays as it is."""
    current = await _server(call)
    return server_from_proto(await updated_server(call, current, call.body.config, call.body.server_name))


@operations.delete("/mcp-servers/{mcp_server_id}", status=NO_CONTENT)
async def mcp_delete_mcp_server(call: Call[NoQuery, None]) -> None:
    """Deletes an MCP server with its tools."""
    await deleted_server(call, await _server(call))


@operations.patch("/mcp-servers/{mcp_server_id}/refresh", query=RefreshQuery, result=Refreshed)
async def mcp_refresh_mcp_server_tools(call: Call[RefreshQuery, None]) -> Refreshed:
    """Reads the tools of an MCP server again, and returns the names of those that changed."""
    return await refreshed_server(call, call.path["mcp_server_id"])


@operations.get("/mcp-servers/connect/{mcp_server_id}")
async def mcp_connect_mcp_server(call: Call[NoQuery, None]) -> Response:
    """Contacts an MCP server, and streams what happens as server-sent events. A person can authorize the access."""
    return contact_stream(call, await _server(call))


@operations.get("/mcp-servers/{mcp_server_id}/tools", result=list[Tool])
async def mcp_list_tools_for_mcp_server(call: Call[NoQuery, None]) -> list[Tool]:
    """Lists the tools of an MCP server."""
    request = rpc.ListMcpServerToolsRequest(mcp_server_id=(await _server(call)).id)
    rows = await listed(call.mesh.mcp_servers.ListMcpServerTools, request, "tools", _EVERY, default="asc")
    return [mcp_tool_from_proto(row) for row in rows]


@operations.get("/mcp-servers/{mcp_server_id}/tools/{tool_id}", result=Tool)
async def mcp_retrieve_mcp_tool(call: Call[NoQuery, None]) -> Tool:
    """Returns a tool of an MCP server."""
    request = rpc.GetMcpServerToolRequest(mcp_server_id=call.path["mcp_server_id"], tool=_tool(call))
    return mcp_tool_from_proto((await call.mesh.mcp_servers.GetMcpServerTool(request, timeout=READ_SECONDS)).tool)


@operations.post(
    "/mcp-servers/{mcp_server_id}/tools/{tool_id}/run", body=RunMcpTool, optional_body=True, result=ToolResult
)
async def mcp_run_tool(call: Call[NoQuery, RunMcpTool]) -> ToolResult:
    """Runs a tool of an MCP server."""
    return await run_tool(call, call.path["mcp_server_id"], _tool(call))


async def run_tool(call: Call[Any, RunMcpTool], server_id: str, tool: rpc.McpToolReference) -> ToolResult:
    """Runs a tool of an MCP server with the arguments of the body."""
    request = rpc.RunMcpServerToolRequest(
        request_id=call.request_id,
        mcp_server_id=server_id,
        tool=tool,
        arguments=json_to_text(call.body.args) or "{}",
    )
    result = await call.mesh.mcp_servers.RunMcpServerTool(request, timeout=_SECONDS)
    failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    return ToolResult(status="error" if failed else "success", func_return=text_of(result.content))


async def all_servers(call: Call[Any, Any]) -> list[mcp_servers_pb2.McpServer]:
    """Returns all MCP servers, oldest first."""
    request = rpc.ListMcpServersRequest()
    return await listed(call.mesh.mcp_servers.ListMcpServers, request, "mcp_servers", _EVERY, default="asc")


async def created_server(call: Call[Any, Any], server: mcp_servers_pb2.McpServer) -> mcp_servers_pb2.McpServer:
    """Creates an MCP server and reads its tools. If it cannot be reached, a refresh reads them later."""
    request = rpc.CreateMcpServerRequest(request_id=call.request_id, mcp_server=server)
    made = (await call.mesh.mcp_servers.CreateMcpServer(request, timeout=_SECONDS)).mcp_server
    with contextlib.suppress(MnemeshError):
        refresh = rpc.RefreshMcpServerRequest(mcp_server_id=made.id)
        await call.mesh.mcp_servers.RefreshMcpServer(refresh, timeout=_CONTACT_SECONDS)
    return made


async def updated_server(
    call: Call[Any, Any], current: mcp_servers_pb2.McpServer, changes: McpConfigChanges, name: str | None
) -> mcp_servers_pb2.McpServer:
    """Updates the settings of an MCP server, and its name unless it is None. Returns the server."""
    kind, server = changed_transport(current, changes)
    server.id = current.id
    request = rpc.UpdateMcpServerRequest(request_id=call.request_id, mcp_server=server, base_revision=current.revision)
    request.update_mask.paths.append(kind)
    if name is not None:
        request.mcp_server.name = name
        request.update_mask.paths.append("name")
    return (await call.mesh.mcp_servers.UpdateMcpServer(request, timeout=_SECONDS)).mcp_server


async def deleted_server(call: Call[Any, Any], server: mcp_servers_pb2.McpServer) -> None:
    """Deletes an MCP server with its tools."""
    request = rpc.DeleteMcpServerRequest(request_id=call.request_id, mcp_server_id=server.id)
    await call.mesh.mcp_servers.DeleteMcpServer(request, timeout=_SECONDS)


async def refreshed_server(call: Call[RefreshQuery, None], server_id: str) -> Refreshed:
    """Reads the tools of an MCP server again, and returns the names of those that changed."""
    request = rpc.RefreshMcpServerRequest(request_id=call.request_id, mcp_server_id=server_id)
    if call.query.agent_id is not None:
        request.caller.agent_id = call.query.agent_id
    changed = await call.mesh.mcp_servers.RefreshMcpServer(request, timeout=_SECONDS)
    return Refreshed(
        added=[tool.name for tool in changed.added],
        updated=[tool.name for tool in changed.updated],
        deleted=[tool.name for tool in changed.removed],
    )


async def _server(call: Call[Any, Any]) -> mcp_servers_pb2.McpServer:
    request = rpc.GetMcpServerRequest(mcp_server_id=call.path["mcp_server_id"])
    return (await call.mesh.mcp_servers.GetMcpServer(request, timeout=READ_SECONDS)).mcp_server


def _tool(call: Call[Any, Any]) -> rpc.McpToolReference:
    return rpc.McpToolReference(tool_id=call.path["tool_id"])
