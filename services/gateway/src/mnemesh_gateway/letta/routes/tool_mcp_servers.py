"""MCP servers under the paths of clients before 1.0, which name a server instead of using its id."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_kit.errors import NotFound
from starlette.responses import Response

from mnemesh_gateway.errors import McpServerUnreachable
from mnemesh_gateway.letta.convert.mcp_servers import (
    mcp_tool_from_proto,
    named_changes,
    named_server_from_proto,
    named_server_to_proto,
    offered_tool_from_proto,
)
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS
from mnemesh_gateway.letta.routes.mcp_connections import contact_stream
from mnemesh_gateway.letta.routes.mcp_servers import (
    all_servers,
    created_server,
    deleted_server,
    refreshed_server,
    run_tool,
    updated_server,
)
from mnemesh_gateway.letta.schemas.mcp_servers import (
    ExecutedMcpTool,
    OfferedTool,
    Refreshed,
    RefreshQuery,
    RunMcpTool,
    ServerConfig,
    TestedServer,
    UpdateServerConfig,
)
from mnemesh_gateway.letta.schemas.tools import Tool

operations = Operations()
_SECONDS: Final = 120.0


@operations.get("/tools/mcp/servers", result=dict[str, ServerConfig])
async def list_mcp_servers(call: Call[NoQuery, None]) -> dict[str, ServerConfig]:
    """Returns all MCP servers by their names."""
    return {server.name: named_server_from_proto(server) for server in await all_servers(call)}


@operations.put("/tools/mcp/servers", body=ServerConfig, result=list[ServerConfig])
async def add_mcp_server(call: Call[NoQuery, ServerConfig]) -> list[ServerConfig]:
    """Creates an MCP server, reads its tools, and returns all servers."""
    await created_server(call, named_server_to_proto(call.body))
    return [named_server_from_proto(server) for server in await all_servers(call)]


@operations.post("/tools/mcp/servers/test", body=ServerConfig, result=TestedServer)
async def test_mcp_server(call: Call[NoQuery, ServerConfig]) -> TestedServer:
    """Contacts an MCP server, and returns its tools. Nothing is stored."""
    request = rpc.TestMcpServerRequest(mcp_server=named_server_to_proto(call.body))
    tools = await _offered(call, call.body.server_name, request)
    return TestedServer(status="success", tools=tools)


@operations.post("/tools/mcp/servers/connect", body=ServerConfig)
async def connect_mcp_server(call: Call[NoQuery, ServerConfig]) -> Response:
    """Contacts an MCP server, and streams what happens as server-sent events. Nothing is stored."""
    return contact_stream(call, named_server_to_proto(call.body))


@operations.patch("/tools/mcp/servers/{mcp_server_name}", body=UpdateServerConfig, result=ServerConfig)
async def update_mcp_server(call: Call[NoQuery, UpdateServerConfig]) -> ServerConfig:
    """Updates the settings of an MCP server. What the request does not name stays as it is."""
    changed = await updated_server(call, await _server(call), named_changes(call.body), call.body.server_name)
    return named_server_from_proto(changed)


@operations.delete("/tools/mcp/servers/{mcp_server_name}", result=list[ServerConfig])
async def delete_mcp_server(call: Call[NoQuery, None]) -> list[ServerConfig]:
    """Deletes an MCP server with its tools, and returns the other servers."""
    await deleted_server(call, await _server(call))
    return [named_server_from_proto(server) for server in await all_servers(call)]


@operations.get("/tools/mcp/servers/{mcp_server_name}/tools", result=list[OfferedTool])
async def list_mcp_tools_by_server(call: Call[NoQuery, None]) -> list[OfferedTool]:
    """Contacts an MCP server, and returns the tools that it offers now."""
    server = await _server(call)
    return await _offered(call, server.name, rpc.TestMcpServerRequest(mcp_server_id=server.id))


@operations.post("/tools/mcp/servers/{mcp_server_name}/resync", query=RefreshQuery, result=Refreshed)
async def resync_mcp_server_tools(call: Call[RefreshQuery, None]) -> Refreshed:
    """Reads the tools of an MCP server again, and returns the names of those that changed."""
    return await refreshed_server(call, (await _server(call)).id)


@operations.post(
    "/tools/mcp/servers/{mcp_server_name}/tools/{mcp_tool_name}/execute", body=RunMcpTool, result=ExecutedMcpTool
)
async def execute_mcp_tool(call: Call[NoQuery, RunMcpTool]) -> ExecutedMcpTool:
    """Runs a tool of an MCP server."""
    reference = rpc.McpToolReference(name=call.path["mcp_tool_name"])
    done = await run_tool(call, (await _server(call)).id, reference)
    return ExecutedMcpTool(result=done.func_return, success=done.status == "success")


@operations.post("/tools/mcp/servers/{mcp_server_name}/{mcp_tool_name}", result=Tool)
async def add_mcp_tool(call: Call[NoQuery, None]) -> Tool:
    """Returns a tool of an MCP server, with the id for agents. The tools are read again if it is a new one."""
    server = await _server(call)
    request = rpc.GetMcpServerToolRequest(
        mcp_server_id=server.id, tool=rpc.McpToolReference(name=call.path["mcp_tool_name"])
    )
    try:
        found = await call.mesh.mcp_servers.GetMcpServerTool(request, timeout=READ_SECONDS)
    except NotFound:
        refresh = rpc.RefreshMcpServerRequest(mcp_server_id=server.id)
        await call.mesh.mcp_servers.RefreshMcpServer(refresh, timeout=_SECONDS)
        found = await call.mesh.mcp_servers.GetMcpServerTool(request, timeout=READ_SECONDS)
    return mcp_tool_from_proto(found.tool)


async def _server(call: Call[Any, Any]) -> pb.McpServer:
    name = call.path["mcp_server_name"]
    request = rpc.ListMcpServersRequest(name=name, page_size=1)
    found = (await call.mesh.mcp_servers.ListMcpServers(request, timeout=READ_SECONDS)).mcp_servers
    if not found:
        raise NotFound(f"There is no MCP server with the name {name[:200]!r}.", field="mcp_server_name")
    return found[0]


async def _offered(call: Call[Any, Any], name: str, request: rpc.TestMcpServerRequest) -> list[OfferedTool]:
    found = await call.mesh.mcp_servers.TestMcpServer(request, timeout=_SECONDS)
    if found.status != pb.MCP_SERVER_STATUS_REACHABLE:
        raise McpServerUnreachable(name, found.status_message or "The transport is disabled.")
    return [offered_tool_from_proto(tool) for tool in found.tools]
