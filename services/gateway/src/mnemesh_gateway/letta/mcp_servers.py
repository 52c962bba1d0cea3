"""MCP servers, under their own path and under that of tools."""

import contextlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from mnemesh.tools.v1 import mcp_servers_pb2 as mcp_servers_pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_letta.convert.values import json_text, json_value, present, set_present
from starlette.responses import Response

from mnemesh_gateway.errors import McpServerUnreachable
from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mcp_authorizations import OfferedTool, contact_stream, offered_tool_from_proto
from mnemesh_gateway.letta.mesh import PageQuery, list_page
from mnemesh_gateway.letta.messages import text_of
from mnemesh_gateway.letta.operations import NO_CONTENT, Call, NoQuery, Operations, read
from mnemesh_gateway.letta.tools import Tool, ToolResult

_SECONDS: Final = 120.0


class McpAddress(msgspec.Struct, kw_only=True):
    """How a server is reached. Which fields apply depends on the type."""

    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = None
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | None = None
    custom_headers: dict[str, str] | None = None


class McpConfig(McpAddress, kw_only=True):
    """How a server of a request is reached."""

    mcp_server_type: str | None = None


class McpConfigChanges(msgspec.Struct, kw_only=True):
    """Changes of how a server is reached. What is absent stays as it is.

    Null clears a token, headers and an environment, and leaves the other fields. An empty value of a header or a
    variable stands for the stored one, which clients do not see.
    """

    mcp_server_type: str | None = None
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | msgspec.UnsetType | None = msgspec.UNSET
    custom_headers: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


class CreateMcpServer(msgspec.Struct, kw_only=True):
    """A server to create."""

    server_name: str
    config: McpConfig


class UpdateMcpServer(msgspec.Struct, kw_only=True):
    """Changes of a server. The name stays if it is null or absent."""

    config: McpConfigChanges
    server_name: str | None = None


class McpServer(McpAddress, kw_only=True, omit_defaults=True):
    """A server. Values of secrets are never shown."""

    id: str
    server_name: str
    mcp_server_type: str


class RefreshQuery(msgspec.Struct, kw_only=True):
    """The agent on whose behalf a server is asked."""

    agent_id: str | None = None


class Refreshed(msgspec.Struct, kw_only=True):
    """The names of the tools that a refresh changed."""

    added: list[str]
    updated: list[str]
    deleted: list[str]


class RunMcpTool(msgspec.Struct, kw_only=True):
    """The arguments of a tool."""

    args: dict[str, Any] = {}


class ExecutedMcpTool(msgspec.Struct, kw_only=True):
    """The result of a tool, or its error message."""

    result: Any
    success: bool


class ServerConfig(McpAddress, kw_only=True, omit_defaults=True):
    """A server under the paths that name it, as clients before 1.0 write and read it. Tokens are never shown."""

    server_name: str
    type: str | None = None


class UpdateServerConfig(msgspec.Struct, kw_only=True):
    """Changes of such a server. What is absent stays as it is; a new stdio_config replaces the whole one.

    Clients name the token of a server over SSE `token`, and that of another one `auth_token`.
    """

    server_name: str | None = None
    stdio_config: ServerConfig | None = None
    server_url: str | None = None
    auth_header: str | None = None
    auth_token: str | msgspec.UnsetType | None = msgspec.UNSET
    token: str | msgspec.UnsetType | None = msgspec.UNSET
    custom_headers: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


class TestedServer(msgspec.Struct, kw_only=True):
    """The tools of a server that answers."""

    status: str
    tools: list[OfferedTool]


def server_from_proto(server: mcp_servers_pb.McpServer) -> McpServer:
    """Returns a server without the values of its secrets."""
    kind, address = _address(server)
    return McpServer(id=server.id, server_name=server.name, mcp_server_type=kind, **address)


def named_server_from_proto(server: mcp_servers_pb.McpServer) -> ServerConfig:
    """Returns a server without the values of its secrets, as the paths with its name show it."""
    kind, address = _address(server)
    return ServerConfig(server_name=server.name, type=kind, **address)


def _address(server: mcp_servers_pb.McpServer) -> tuple[str, dict[str, Any]]:
    """Returns the type of a server's transport, and the fields of its address."""
    kind = server.WhichOneof("transport") or "streamable_http"
    transport: Any = getattr(server, kind)
    if kind == "stdio":
        return kind, {"command": transport.command, "args": list(transport.args), "env": _names(transport.env)}
    header = present(transport.auth, "header") if transport.HasField("auth") else None
    headers = _names(transport.headers)
    return kind, {"server_url": transport.url, "custom_headers": headers, "auth_header": header}


def transport_to_proto(config: McpConfig) -> mcp_servers_pb.McpServer:
    """Returns a server with the transport of a request.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.mcp_server_type or ("stdio" if config.command else "streamable_http")
    return _server(kind, config, "body", "config", type_field="mcp_server_type")


def named_server_to_proto(config: ServerConfig) -> mcp_servers_pb.McpServer:
    """Returns the server of a request. Without a type, a server with a URL speaks the older HTTP transport.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    kind = config.type or ("stdio" if config.command else "sse")
    server = _server(kind, config, "body", type_field="type")
    server.name = config.server_name
    return server


def _server(kind: str, config: McpAddress, *place: str, type_field: str) -> mcp_servers_pb.McpServer:
    _valid_kind(kind, *place, type_field)
    server = mcp_servers_pb.McpServer()
    transport: Any = getattr(server, kind)
    if kind == "stdio":
        transport.command = _required(config.command, *place, "command")
        transport.args.extend(config.args or ())
        _set_secrets(transport.env, config.env)
        return server
    transport.url = _required(config.server_url, *place, "server_url")
    if config.auth_token is not None:
        transport.auth.token.value = config.auth_token
        set_present(transport.auth, header=config.auth_header)
    _set_secrets(transport.headers, config.custom_headers)
    return server


def changed_transport(
    current: mcp_servers_pb.McpServer, changes: McpConfigChanges
) -> tuple[str, mcp_servers_pb.McpServer]:
    """Returns the name of a transport and a server that has it: the current one with changes.

    Stored secrets have no values in it, which keeps them.

    Raises:
        ValidationFailed: the type is unknown, or a field that it needs is missing.
    """
    before = current.WhichOneof("transport") or "streamable_http"
    place = ("body", "config")
    kind = changes.mcp_server_type or before
    _valid_kind(kind, *place, "mcp_server_type")
    server = mcp_servers_pb.McpServer()
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


def _valid_kind(kind: str, *loc: str) -> None:
    if kind not in ("stdio", "sse", "streamable_http"):
        raise invalid_field("Input should be 'stdio', 'sse' or 'streamable_http'", *loc)


def _required(value: str | None, *loc: str) -> str:
    if not value:
        raise invalid_field("Field required", *loc)
    return value


def _set_secrets(secrets: Any, values: dict[str, str] | msgspec.UnsetType | None) -> None:
    """Replaces values by name; an empty one stands for the stored one."""
    if isinstance(values, msgspec.UnsetType):
        return
    known = {secret.name.lower() for secret in secrets}
    del secrets[:]
    for name, value in (values or {}).items():
        kept = not value and name.lower() in known
        secrets.append(mcp_servers_pb.McpSecret(name=name, value=None if kept else value))


def mcp_tool_from_proto(tool: mcp_servers_pb.McpTool) -> Tool:
    schema = json_value(tool.json_schema if tool.HasField("json_schema") else tool.input_schema)
    return Tool(
        id=tool.tool_id,
        name=tool.name,
        tool_type="external_mcp",
        source_type="json",
        description=present(tool, "description"),
        json_schema=schema,
        metadata_={"mcp": {"server_id": tool.mcp_server_id}},
    )


def _names(secrets: Iterable[mcp_servers_pb.McpSecret]) -> dict[str, str] | None:
    return {secret.name: secret.value for secret in secrets} or None


operations = Operations()
_CONTACT_SECONDS: Final = 30.0
_EVERY: Final = PageQuery(limit=10_000)


@operations.post("/mcp-servers/")
async def mcp_create_mcp_server(call: Call[NoQuery, CreateMcpServer]) -> McpServer:
    """Creates an MCP server and reads its tools. If it cannot be reached, a refresh reads them later."""
    server = transport_to_proto(call.body.config)
    server.name = call.body.server_name
    return server_from_proto(await create_server(call, server))


@operations.get("/mcp-servers/")
async def mcp_list_mcp_servers(call: Call[NoQuery, None]) -> list[McpServer]:
    """Lists all MCP servers, oldest first."""
    return [server_from_proto(server) for server in await list_all_servers(call)]


@operations.get("/mcp-servers/{mcp_server_id}")
async def mcp_get_mcp_server(call: Call[NoQuery, None]) -> McpServer:
    """Returns an MCP server."""
    return server_from_proto(await _read_server(call))


@operations.patch("/mcp-servers/{mcp_server_id}")
async def mcp_update_mcp_server(call: Call[NoQuery, UpdateMcpServer]) -> McpServer:
    """Updates the name and the settings of an MCP server. What the request does not name stays as it is."""
    current = await _read_server(call)
    return server_from_proto(await update_server(call, current, call.body.config, call.body.server_name))


@operations.delete("/mcp-servers/{mcp_server_id}", status=NO_CONTENT)
async def mcp_delete_mcp_server(call: Call[NoQuery, None]) -> None:
    """Deletes an MCP server with its tools."""
    await delete_server(call, await _read_server(call))


@operations.patch("/mcp-servers/{mcp_server_id}/refresh")
async def mcp_refresh_mcp_server_tools(call: Call[RefreshQuery, None]) -> Refreshed:
    """Reads the tools of an MCP server again, and returns the names of those that changed."""
    return await refresh_server(call, call.path["mcp_server_id"])


@operations.get("/mcp-servers/connect/{mcp_server_id}")
async def mcp_connect_mcp_server(call: Call[NoQuery, None]) -> Response:
    """Contacts an MCP server, and streams what happens as server-sent events. A person can authorize the access."""
    return contact_stream(call, await _read_server(call))


@operations.get("/mcp-servers/{mcp_server_id}/tools")
async def mcp_list_tools_for_mcp_server(call: Call[NoQuery, None]) -> list[Tool]:
    """Lists the tools of an MCP server."""
    request = rpc.ListMcpServerToolsRequest(mcp_server_id=(await _read_server(call)).id)
    rows = await list_page(call.mesh.mcp_servers.ListMcpServerTools, request, "tools", _EVERY, default="asc")
    return [mcp_tool_from_proto(row) for row in rows]


@operations.get("/mcp-servers/{mcp_server_id}/tools/{tool_id}")
async def mcp_retrieve_mcp_tool(call: Call[NoQuery, None]) -> Tool:
    """Returns a tool of an MCP server."""
    request = rpc.GetMcpServerToolRequest(mcp_server_id=call.path["mcp_server_id"], tool=_tool(call))
    return mcp_tool_from_proto((await read(call.mesh.mcp_servers.GetMcpServerTool, request)).tool)


@operations.post("/mcp-servers/{mcp_server_id}/tools/{tool_id}/run", optional_body=True)
async def mcp_run_tool(call: Call[NoQuery, RunMcpTool]) -> ToolResult:
    """Runs a tool of an MCP server."""
    return await run_tool(call, call.path["mcp_server_id"], _tool(call))


async def run_tool(call: Call[Any, RunMcpTool], server_id: str, tool: rpc.McpToolReference) -> ToolResult:
    """Runs a tool of an MCP server with the arguments of the body."""
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server_id,
        tool=tool,
        arguments=json_text(call.body.args) or "{}",
    )
    result = await call.write(call.mesh.mcp_servers.RunMcpServerTool, request, seconds=_SECONDS)
    failed = result.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    return ToolResult(status="error" if failed else "success", func_return=text_of(result.content))


async def list_all_servers(call: Call[Any, Any]) -> list[mcp_servers_pb.McpServer]:
    """Returns all MCP servers, oldest first."""
    request = rpc.ListMcpServersRequest()
    return await list_page(call.mesh.mcp_servers.ListMcpServers, request, "mcp_servers", _EVERY, default="asc")


async def create_server(call: Call[Any, Any], server: mcp_servers_pb.McpServer) -> mcp_servers_pb.McpServer:
    """Creates an MCP server and reads its tools. If it cannot be reached, a refresh reads them later."""
    request = rpc.CreateMcpServerRequest(mcp_server=server)
    made = (await call.write(call.mesh.mcp_servers.CreateMcpServer, request, seconds=_SECONDS)).mcp_server
    with contextlib.suppress(MnemeshError):
        refresh = rpc.RefreshMcpServerRequest(mcp_server_id=made.id)
        await call.mesh.mcp_servers.RefreshMcpServer(refresh, timeout=_CONTACT_SECONDS)
    return made


async def update_server(
    call: Call[Any, Any], current: mcp_servers_pb.McpServer, changes: McpConfigChanges, name: str | None
) -> mcp_servers_pb.McpServer:
    """Updates the settings of an MCP server, and its name unless it is None. Returns the server."""
    kind, server = changed_transport(current, changes)
    server.id = current.id
    request = rpc.UpdateMcpServerRequest(mcp_server=server, base_revision=current.revision)
    request.update_mask.paths.append(kind)
    if name is not None:
        request.mcp_server.name = name
        request.update_mask.paths.append("name")
    return (await call.write(call.mesh.mcp_servers.UpdateMcpServer, request, seconds=_SECONDS)).mcp_server


async def delete_server(call: Call[Any, Any], server: mcp_servers_pb.McpServer) -> None:
    """Deletes an MCP server with its tools."""
    request = rpc.DeleteMcpServerRequest(mcp_server_id=server.id)
    await call.write(call.mesh.mcp_servers.DeleteMcpServer, request, seconds=_SECONDS)


async def refresh_server(call: Call[RefreshQuery, None], server_id: str) -> Refreshed:
    """Reads the tools of an MCP server again, and returns the names of those that changed."""
    request = rpc.RefreshMcpServerRequest(mcp_server_id=server_id)
    if call.query.agent_id is not None:
        request.caller.agent_id = call.query.agent_id
    changed = await call.write(call.mesh.mcp_servers.RefreshMcpServer, request, seconds=_SECONDS)
    return Refreshed(
        added=[tool.name for tool in changed.added],
        updated=[tool.name for tool in changed.updated],
        deleted=[tool.name for tool in changed.removed],
    )


async def _read_server(call: Call[Any, Any]) -> mcp_servers_pb.McpServer:
    request = rpc.GetMcpServerRequest(mcp_server_id=call.path["mcp_server_id"])
    return (await read(call.mesh.mcp_servers.GetMcpServer, request)).mcp_server


def _tool(call: Call[Any, Any]) -> rpc.McpToolReference:
    return rpc.McpToolReference(tool_id=call.path["tool_id"])


@operations.get("/tools/mcp/servers")
async def list_mcp_servers(call: Call[NoQuery, None]) -> dict[str, ServerConfig]:
    """Returns all MCP servers by their names."""
    return {server.name: named_server_from_proto(server) for server in await list_all_servers(call)}


@operations.put("/tools/mcp/servers")
async def add_mcp_server(call: Call[NoQuery, ServerConfig]) -> list[ServerConfig]:
    """Creates an MCP server, reads its tools, and returns all servers."""
    await create_server(call, named_server_to_proto(call.body))
    return [named_server_from_proto(server) for server in await list_all_servers(call)]


@operations.post("/tools/mcp/servers/test")
async def test_mcp_server(call: Call[NoQuery, ServerConfig]) -> TestedServer:
    """Contacts an MCP server, and returns its tools. Nothing is stored."""
    request = rpc.TestMcpServerRequest(mcp_server=named_server_to_proto(call.body))
    tools = await _list_offered(call, call.body.server_name, request)
    return TestedServer(status="success", tools=tools)


@operations.post("/tools/mcp/servers/connect")
async def connect_mcp_server(call: Call[NoQuery, ServerConfig]) -> Response:
    """Contacts an MCP server, and streams what happens as server-sent events. Nothing is stored."""
    return contact_stream(call, named_server_to_proto(call.body))


@operations.patch("/tools/mcp/servers/{mcp_server_name}")
async def update_mcp_server(call: Call[NoQuery, UpdateServerConfig]) -> ServerConfig:
    """Updates the settings of an MCP server. What the request does not name stays as it is."""
    changed = await update_server(call, await _tool_server(call), named_changes(call.body), call.body.server_name)
    return named_server_from_proto(changed)


@operations.delete("/tools/mcp/servers/{mcp_server_name}")
async def delete_mcp_server(call: Call[NoQuery, None]) -> list[ServerConfig]:
    """Deletes an MCP server with its tools, and returns the other servers."""
    await delete_server(call, await _tool_server(call))
    return [named_server_from_proto(server) for server in await list_all_servers(call)]


@operations.get("/tools/mcp/servers/{mcp_server_name}/tools")
async def list_mcp_tools_by_server(call: Call[NoQuery, None]) -> list[OfferedTool]:
    """Contacts an MCP server, and returns the tools that it offers now."""
    server = await _tool_server(call)
    return await _list_offered(call, server.name, rpc.TestMcpServerRequest(mcp_server_id=server.id))


@operations.post("/tools/mcp/servers/{mcp_server_name}/resync")
async def resync_mcp_server_tools(call: Call[RefreshQuery, None]) -> Refreshed:
    """Reads the tools of an MCP server again, and returns the names of those that changed."""
    return await refresh_server(call, (await _tool_server(call)).id)


@operations.post("/tools/mcp/servers/{mcp_server_name}/tools/{mcp_tool_name}/execute")
async def execute_mcp_tool(call: Call[NoQuery, RunMcpTool]) -> ExecutedMcpTool:
    """Runs a tool of an MCP server."""
    reference = rpc.McpToolReference(name=call.path["mcp_tool_name"])
    done = await run_tool(call, (await _tool_server(call)).id, reference)
    return ExecutedMcpTool(result=done.func_return, success=done.status == "success")


@operations.post("/tools/mcp/servers/{mcp_server_name}/{mcp_tool_name}")
async def add_mcp_tool(call: Call[NoQuery, None]) -> Tool:
    """Returns a tool of an MCP server, with the id for agents. The tools are read again if it is a new one."""
    server = await _tool_server(call)
    request = rpc.GetMcpServerToolRequest(
        mcp_server_id=server.id, tool=rpc.McpToolReference(name=call.path["mcp_tool_name"])
    )
    try:
        found = await read(call.mesh.mcp_servers.GetMcpServerTool, request)
    except NotFound:
        refresh = rpc.RefreshMcpServerRequest(mcp_server_id=server.id)
        await call.mesh.mcp_servers.RefreshMcpServer(refresh, timeout=_SECONDS)
        found = await read(call.mesh.mcp_servers.GetMcpServerTool, request)
    return mcp_tool_from_proto(found.tool)


async def _tool_server(call: Call[Any, Any]) -> mcp_servers_pb.McpServer:
    name = call.path["mcp_server_name"]
    request = rpc.ListMcpServersRequest(name=name, page_size=1)
    found = (await read(call.mesh.mcp_servers.ListMcpServers, request)).mcp_servers
    if not found:
        raise NotFound(f"There is no MCP server with the name {name[:200]!r}.", field="mcp_server_name")
    return found[0]


async def _list_offered(call: Call[Any, Any], name: str, request: rpc.TestMcpServerRequest) -> list[OfferedTool]:
    found = await call.mesh.mcp_servers.TestMcpServer(request, timeout=_SECONDS)
    if found.status != mcp_servers_pb.MCP_SERVER_STATUS_REACHABLE:
        raise McpServerUnreachable(name, found.status_message or "The transport is disabled.")
    return [offered_tool_from_proto(tool) for tool in found.tools]
