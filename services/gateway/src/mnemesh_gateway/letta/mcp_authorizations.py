"""Contacts of MCP servers, and the authorization of a person that they may ask for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

import msgspec
from mnemesh.tools.v1 import mcp_servers_pb2 as mcp_servers_pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_kit.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, MnemeshError, Unavailable
from mnemesh_letta.convert.values import json_value, shown
from starlette.responses import Response

from mnemesh_gateway.errors import McpAccessDenied
from mnemesh_gateway.http.console import message_page
from mnemesh_gateway.http.errors import status_of
from mnemesh_gateway.http.streams import event_stream, sse
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, Operations

operations = Operations()


class SchemaHealth(msgspec.Struct, kw_only=True):
    """The status of a tool's schema: a provider can enforce it, or not, and the reasons."""

    status: str
    reasons: list[str]


class OfferedTool(msgspec.Struct, kw_only=True, rename="camel"):
    """A tool as its server describes it."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any] | None
    health: SchemaHealth


_HEALTH: Final = {
    mcp_servers_pb.MCP_SCHEMA_STATUS_STRICT: "STRICT_COMPLIANT",
    mcp_servers_pb.MCP_SCHEMA_STATUS_NON_STRICT: "NON_STRICT_ONLY",
    mcp_servers_pb.MCP_SCHEMA_STATUS_INVALID: "INVALID",
}


def offered_tool_from_proto(tool: mcp_servers_pb.McpTool) -> OfferedTool:
    """Returns a tool as its server describes it."""
    health = tool.schema_health
    return shown(
        OfferedTool,
        tool,
        input_schema=json_value(tool.input_schema) or {},
        health=SchemaHealth(status=_HEALTH.get(health.status, "INVALID"), reasons=list(health.reasons)),
    )


POLL_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 10.0
CALLBACK: Final = "/tools/mcp/oauth/callback"
_SECONDS: Final = 120.0
_PERSON_SECONDS: Final = 300.0


async def wait_for_authorization(mesh: Mesh, server_id: str, state: str, seconds: float) -> None:
    """Waits until an authorization is completed.

    Raises:
        DeadlineExceeded: The person did not answer in time.
        McpAccessDenied: The person or the authorization server refused.
        FailedPrecondition: Another authorization of the server was started.
        Unavailable: This gateway stops.
    """
    request = rpc.GetMcpAuthorizationRequest(mcp_server_id=server_id, state=state)
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    found = await mesh.mcp_servers.GetMcpAuthorization(request, timeout=_CALL_SECONDS)
                except (Unavailable, DeadlineExceeded):
                    found = rpc.GetMcpAuthorizationResponse()  # the service restarts
                if found.status == rpc.MCP_AUTHORIZATION_STATUS_COMPLETED:
                    return
                if found.status == rpc.MCP_AUTHORIZATION_STATUS_FAILED:
                    raise McpAccessDenied(found.status_message)
                with suppress(TimeoutError):
                    await asyncio.wait_for(mesh.stopping.wait(), POLL_SECONDS)
                    raise Unavailable("The gateway stops. Connect to the MCP server again.")
    except TimeoutError as error:
        raise DeadlineExceeded("The access was not authorized in time.") from error


class Redirect(msgspec.Struct, kw_only=True):
    """The query parameters that the authorization server adds to the callback URL."""

    state: str = ""
    code: str | None = None
    error: str | None = None
    error_description: str | None = None
    iss: str | None = None


class Received(msgspec.Struct, kw_only=True):
    """The answer to clients other than browsers. `status` says if a request waited for the authorization."""

    status: str
    message: str


@operations.get(CALLBACK)
async def mcp_oauth_callback(call: Call[Redirect, None]) -> Received | Response:
    """Receives the answer of an authorization server from a browser, without a token: the state proves the request."""
    if "text/html" not in call.request.headers.get("accept", ""):
        return await _receive(call)
    path = call.request.url.path
    try:
        received = await _receive(call)
    except MnemeshError as error:
        text = f"{error.message} Reload this page to try again."
        return message_page(path, "The mesh did not answer", text, status=status_of(error))
    title = "Access authorized" if received.status == "success" else "Access not authorized"
    return message_page(path, title, received.message)


async def _receive(call: Call[Redirect, None]) -> Received:
    given = call.query
    request = rpc.ReceiveMcpAuthorizationRequest(
        state=given.state, error_description=given.error_description, iss=given.iss
    )
    if given.code is not None:
        request.code = given.code
    else:
        request.error = given.error or "no code was granted"
    try:
        ended = await call.mesh.mcp_servers.ReceiveMcpAuthorization(request, timeout=_SECONDS)
    except (FailedPrecondition, InvalidArgument):
        return Received(
            status="error", message="No authorization waits for this answer. Close this window, and start it again."
        )
    if ended.status != rpc.MCP_AUTHORIZATION_STATUS_COMPLETED:
        text = f"{ended.status_message.rstrip('.')}. Close this window, and start the authorization again."
        return Received(status="error", message=text)
    return Received(status="success", message="The access is authorized. You can close this window.")


def contact_stream(call: Call[Any, Any], server: mcp_servers_pb.McpServer) -> Response:
    """Returns a stream of events: `connection_attempt`, then `success` with the tools, or `error` with a message.

    If the server asks for an authorization and is stored, `oauth_required`, `authorization_url` and `waiting_for_auth`
    come before these.
    """

    async def events() -> AsyncGenerator[bytes, None]:
        yield sse({"event": "connection_attempt", "server_name": server.name})
        try:
            found = await _contact(call, server)
            if found.status == mcp_servers_pb.MCP_SERVER_STATUS_UNAUTHORIZED:
                yield sse({"event": "oauth_required", "message": "The server asks for an authorization by OAuth."})
                if server.id:
                    started = await _authorize(call, server)
                    url, state = started.authorization_url, started.state
                    yield sse({"event": "authorization_url", "url": url, "session_id": state})
                    yield sse({"event": "waiting_for_auth", "message": "Open the URL to authorize the access."})
                    await wait_for_authorization(call.mesh, server.id, state, _PERSON_SECONDS)
                    found = await _contact(call, server)
        except MnemeshError as error:
            yield sse({"event": "error", "message": error.message})
            return
        if found.status == mcp_servers_pb.MCP_SERVER_STATUS_REACHABLE:
            yield sse({"event": "success", "tools": [offered_tool_from_proto(tool) for tool in found.tools]})
        else:
            yield sse({"event": "error", "message": found.status_message or "The transport is disabled."})

    return event_stream(events(), {})


async def _contact(call: Call[Any, Any], server: mcp_servers_pb.McpServer) -> rpc.TestMcpServerResponse:
    """Contacts a server; one that refuses a request without credentials may ask for an authorization by OAuth."""
    request = rpc.TestMcpServerRequest(mcp_server_id=server.id) if server.id else rpc.TestMcpServerRequest()
    if not server.id:
        request.mcp_server.CopyFrom(server)
    found = await call.mesh.mcp_servers.TestMcpServer(request, timeout=_SECONDS)
    if found.status != mcp_servers_pb.MCP_SERVER_STATUS_UNREACHABLE or not _may_ask(server):
        return found
    asked = await call.mesh.mcp_servers.TestMcpServer(
        rpc.TestMcpServerRequest(mcp_server=_with_oauth(server)), timeout=_SECONDS
    )
    return asked if asked.status == mcp_servers_pb.MCP_SERVER_STATUS_UNAUTHORIZED else found


def _may_ask(server: mcp_servers_pb.McpServer) -> bool:
    """Returns whether nothing is known of how the access to a server is authorized."""
    kind = server.WhichOneof("transport")
    if kind is None or kind == "stdio":
        return False
    transport = getattr(server, kind)
    return not transport.HasField("auth") and not transport.HasField("oauth")


def _with_oauth(server: mcp_servers_pb.McpServer) -> mcp_servers_pb.McpServer:
    changed = mcp_servers_pb.McpServer()
    changed.CopyFrom(server)
    getattr(changed, str(server.WhichOneof("transport"))).oauth.SetInParent()
    return changed


async def _authorize(call: Call[Any, Any], server: mcp_servers_pb.McpServer) -> rpc.StartMcpAuthorizationResponse:
    """Starts the authorization of a server, whose settings name OAuth from then on."""
    if _may_ask(server):
        update = rpc.UpdateMcpServerRequest(mcp_server=_with_oauth(server))
        update.update_mask.paths.append(f"{server.WhichOneof('transport')}.oauth")
        await call.write(call.mesh.mcp_servers.UpdateMcpServer, update, seconds=_SECONDS)
    start = rpc.StartMcpAuthorizationRequest(mcp_server_id=server.id, redirect_uri=_redirect_uri(call))
    return await call.mesh.mcp_servers.StartMcpAuthorization(start, timeout=_SECONDS)


def _redirect_uri(call: Call[Any, Any]) -> str:
    """Returns the address of the callback as the caller sees this gateway."""
    url = call.request.base_url
    if call.request.headers.get("x-forwarded-proto") == "https":
        url = url.replace(scheme="https")
    return f"{str(url).rstrip('/')}/v1{CALLBACK}"
