"""The streams that contact an MCP server, and the authorization of the access by a person in a browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, MnemeshError
from starlette.responses import Response

from mnemesh_gateway.http.streams import event_stream, sse
from mnemesh_gateway.letta.authorizations import answered
from mnemesh_gateway.letta.convert.mcp_servers import offered_tool_from_proto
from mnemesh_gateway.letta.operations import Call, Operations

operations = Operations()
CALLBACK: Final = "/tools/mcp/oauth/callback"
_SECONDS: Final = 120.0
_PERSON_SECONDS: Final = 300.0


class Redirect(msgspec.Struct, kw_only=True):
    """The query parameters that the authorization server adds to the callback URL."""

    state: str = ""
    code: str | None = None
    error: str | None = None
    error_description: str | None = None
    iss: str | None = None


class Received(msgspec.Struct, kw_only=True):
    """The answer that the browser shows. `status` says if a request waited for the authorization."""

    status: str
    message: str


@operations.get(CALLBACK, query=Redirect, result=Received)
async def mcp_oauth_callback(call: Call[Redirect, None]) -> Received:
    """Receives the answer of an authorization server from a browser, without a token: the state proves the request."""
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
        return Received(status="error", message="Nobody waits for this authorization. Start it again.")
    if ended.status != rpc.MCP_AUTHORIZATION_STATUS_COMPLETED:
        return Received(status="error", message=ended.status_message)
    return Received(status="success", message="The access is authorized. You can close this window.")


def contact_stream(call: Call[Any, Any], server: pb.McpServer) -> Response:
    """Returns a stream of events: `connection_attempt`, then `success` with the tools, or `error` with a message.

    If the server asks for an authorization and is stored, `oauth_required`, `authorization_url` and `waiting_for_auth`
    come before these.
    """

    async def events() -> AsyncGenerator[bytes, None]:
        yield sse({"event": "connection_attempt", "server_name": server.name})
        try:
            found = await _contacted(call, server)
            if found.status == pb.MCP_SERVER_STATUS_UNAUTHORIZED:
                yield sse({"event": "oauth_required", "message": "The server asks for an authorization by OAuth."})
                if server.id:
                    started = await _started(call, server)
                    url, state = started.authorization_url, started.state
                    yield sse({"event": "authorization_url", "url": url, "session_id": state})
                    yield sse({"event": "waiting_for_auth", "message": "Open the URL to authorize the access."})
                    await answered(call.mesh, server.id, state, _PERSON_SECONDS)
                    found = await _contacted(call, server)
        except MnemeshError as error:
            yield sse({"event": "error", "message": error.message})
            return
        if found.status == pb.MCP_SERVER_STATUS_REACHABLE:
            yield sse({"event": "success", "tools": [offered_tool_from_proto(tool) for tool in found.tools]})
        else:
            yield sse({"event": "error", "message": found.status_message or "The transport is disabled."})

    return event_stream(events(), {})


async def _contacted(call: Call[Any, Any], server: pb.McpServer) -> rpc.TestMcpServerResponse:
    """Contacts a server; one that refuses a request without credentials may ask for an authorization by OAuth."""
    request = rpc.TestMcpServerRequest(mcp_server_id=server.id) if server.id else rpc.TestMcpServerRequest()
    if not server.id:
        request.mcp_server.CopyFrom(server)
    found = await call.mesh.mcp_servers.TestMcpServer(request, timeout=_SECONDS)
    if found.status != pb.MCP_SERVER_STATUS_UNREACHABLE or not _may_ask(server):
        return found
    asked = await call.mesh.mcp_servers.TestMcpServer(
        rpc.TestMcpServerRequest(mcp_server=_with_oauth(server)), timeout=_SECONDS
    )
    return asked if asked.status == pb.MCP_SERVER_STATUS_UNAUTHORIZED else found


def _may_ask(server: pb.McpServer) -> bool:
    """Returns whether nothing is known of how the access to a server is authorized."""
    kind = server.WhichOneof("transport")
    if kind is None or kind == "stdio":
        return False
    transport = getattr(server, kind)
    return not transport.HasField("auth") and not transport.HasField("oauth")


def _with_oauth(server: pb.McpServer) -> pb.McpServer:
    changed = pb.McpServer()
    changed.CopyFrom(server)
    getattr(changed, str(server.WhichOneof("transport"))).oauth.SetInParent()
    return changed


async def _started(call: Call[Any, Any], server: pb.McpServer) -> rpc.StartMcpAuthorizationResponse:
    """Starts the authorization of a server, whose settings name OAuth from then on."""
    if _may_ask(server):
        update = rpc.UpdateMcpServerRequest(request_id=call.request_id, mcp_server=_with_oauth(server))
        update.update_mask.paths.append(f"{server.WhichOneof('transport')}.oauth")
        await call.mesh.mcp_servers.UpdateMcpServer(update, timeout=_SECONDS)
    start = rpc.StartMcpAuthorizationRequest(mcp_server_id=server.id, redirect_uri=_redirect_uri(call))
    return await call.mesh.mcp_servers.StartMcpAuthorization(start, timeout=_SECONDS)


def _redirect_uri(call: Call[Any, Any]) -> str:
    """Returns the address of the callback as the caller sees this gateway."""
    url = call.request.base_url
    if call.request.headers.get("x-forwarded-proto") == "https":
        url = url.replace(scheme="https")
    return f"{str(url).rstrip('/')}/v1{CALLBACK}"
