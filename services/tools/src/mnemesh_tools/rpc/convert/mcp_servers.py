"""Conversions of MCP servers, their settings and their tools."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import audit_pb2, message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import MAX_PAGE_BYTES, fitting
from mnemesh_types.tools import McpCaller, ProgramHealth, SchemaHealth, SchemaStatus
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field

from mnemesh_tools.model.mcp_servers import (
    McpAuthorizationStatus,
    McpContact,
    McpServer,
    McpServerFilter,
    McpServerOrder,
    McpServerSpec,
    McpTransport,
    TransportType,
)
from mnemesh_tools.model.mcp_settings import McpOAuth, McpProgram, McpSecret
from mnemesh_tools.model.mcp_tools import McpRunResult, McpTool, McpToolKey, McpToolOrder, RemoteTool
from mnemesh_tools.usecases.mcp_contacts import CheckedTool

SERVER_PROGRAM: Final = Conversion(pb.StdioTransport, McpProgram, env=None)
SECRET: Final = Conversion(pb.McpSecret, McpSecret)
OAUTH: Final = Conversion(pb.McpOAuth, McpOAuth)
_SERVER: Final = Conversion(pb.McpServer, McpServer, transport=None)
_CONTACT: Final = Conversion(
    pb.McpServer,
    McpContact,
    status_message="message",
    last_contact_time="contact_at",
    last_refresh_time="refresh_at",
)
_REMOTE: Final = Conversion(pb.McpTool, RemoteTool)
_TOOL: Final = Conversion(pb.McpTool, McpTool, mcp_server_id="server_id")
_FILTER: Final = Conversion(
    rpc.ListMcpServersRequest, McpServerFilter, mcp_server_ids="ids", transport_types="transports"
)
enum_of(rpc.McpTransportType, TransportType)
enum_of(rpc.McpAuthorizationStatus, McpAuthorizationStatus, CLAIMED="PENDING")
enum_of(rpc.McpServerOrderBy, McpServerOrder, "CREATE_TIME")
enum_of(rpc.McpServerToolOrderBy, McpToolOrder, "NAME")


def _unnamed(secret: McpSecret | None) -> McpSecret | None:
    return None if secret is None else replace(secret, name="")


R = TypeVar("R", rpc.CreateMcpServerRequest, rpc.UpdateMcpServerRequest)

_HTTP_FIELDS: Final = ("url", "auth", "headers", "oauth")
_WRITABLE: Final = frozenset(
    {
        *("name", "metadata", "stdio", "sse", "streamable_http"),
        *(f"stdio.{name}" for name in ("command", "args", "env", "pip_requirements", "npm_requirements")),
        *("stdio.network_hosts", "stdio.persistent_directory"),
        *(f"{kind}.{name}" for kind in ("sse", "streamable_http") for name in _HTTP_FIELDS),
    }
)


def mcp_server_spec_from_proto(message: pb.McpServer) -> McpServerSpec:
    """Returns what a client writes of a server."""
    transport: McpTransport | None = None
    match message.WhichOneof("transport"):
        case "stdio":
            secrets = tuple(map(SECRET.from_proto, message.stdio.env))
            program = SERVER_PROGRAM.from_proto(message.stdio, "stdio")
            transport = McpTransport(TransportType.STDIO, secrets=secrets, program=program)
        case "sse":
            transport = _http_from_proto(TransportType.SSE, message.sse)
        case "streamable_http":
            transport = _http_from_proto(TransportType.STREAMABLE_HTTP, message.streamable_http)
    return McpServerSpec(message.name, transport, optional_field(message, "metadata"))


def mcp_server_to_proto(server: McpServer, health: ProgramHealth | None = None) -> pb.McpServer:
    """Returns the message of a server, without values of secrets.

    Args:
        server: The server.
        health: Its processes on this host.
    """
    provenance = audit_pb2.Provenance(created_by_id=server.created_by_id, last_updated_by_id=server.last_updated_by_id)
    message = _SERVER.to_proto(server, provenance=provenance)
    message.MergeFrom(_CONTACT.to_proto(server.contact))
    transport = server.transport
    if health is not None:
        message.program.CopyFrom(health.to_proto())
    if transport.type is TransportType.STDIO:
        secrets = [SECRET.to_proto(secret) for secret in transport.secrets]
        message.stdio.CopyFrom(SERVER_PROGRAM.to_proto(transport.program, env=secrets))
    elif transport.type is TransportType.SSE:
        message.sse.CopyFrom(pb.SseTransport(**_http_fields(transport)))
    else:
        message.streamable_http.CopyFrom(pb.StreamableHttpTransport(**_http_fields(transport)))
    return message


def written_paths_from_proto(mask: FieldMask) -> tuple[str, ...]:
    """Returns the paths of an update.

    Raises:
        InvalidArgument: A path is unknown or cannot be written, or the mask is empty.
    """
    if not mask.paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in mask.paths:
        if path not in _WRITABLE:
            raise InvalidArgument(f"update_mask must not name {path[:100]}.", field="update_mask")
    return tuple(dict.fromkeys(mask.paths))


def request_without_secrets(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each value, to compare repeated requests by."""
    copy = type(request)()
    copy.CopyFrom(request)
    server = copy.mcp_server
    kind = server.WhichOneof("transport")
    if kind is None:
        return copy
    transport = getattr(server, kind)
    secrets = list(transport.env if kind == "stdio" else transport.headers)
    if kind != "stdio" and transport.HasField("auth"):
        secrets.append(transport.auth.token)
    if kind != "stdio" and transport.oauth.HasField("client_secret"):
        secrets.append(transport.oauth.client_secret)
    for secret in secrets:
        if secret.value:
            secret.value = fingerprint(secret.value)
    return copy


def mcp_server_filter_from_proto(request: rpc.ListMcpServersRequest) -> McpServerFilter:
    """Returns the filter of a list. Raises InvalidArgument if a type is unknown."""
    return _FILTER.from_proto(request)


def mcp_caller_from_proto(message: rpc.McpCaller) -> McpCaller:
    """Returns the agent on whose behalf a server is contacted.

    Raises:
        InvalidArgument: The id is not possible in a header.
    """
    agent_id = optional_field(message, "agent_id")
    if agent_id is not None and not (agent_id.isascii() and agent_id.isprintable() and len(agent_id) <= 200):
        raise InvalidArgument("caller.agent_id must be the id of an agent.", field="caller.agent_id")
    return McpCaller(agent_id or None, dict(message.variables))


def _http_from_proto(kind: TransportType, message: pb.SseTransport | pb.StreamableHttpTransport) -> McpTransport:
    has_auth = message.HasField("auth")
    return McpTransport(
        kind,
        url=message.url,
        auth_header=optional_field(message.auth, "header") if has_auth else None,
        token=_unnamed(SECRET.from_proto(message.auth.token)) if has_auth else None,
        secrets=tuple(map(SECRET.from_proto, message.headers)),
        oauth=oauth_from_proto(message.oauth) if message.HasField("oauth") else None,
    )


def oauth_from_proto(message: pb.McpOAuth) -> McpOAuth:
    """Returns the OAuth settings. Raises InvalidArgument if the grant is unknown."""
    oauth = OAUTH.from_proto(message, "oauth")
    return replace(oauth, client_secret=_unnamed(oauth.client_secret))


def _http_fields(transport: McpTransport) -> dict[str, Any]:
    token, oauth = transport.token, transport.oauth
    return {
        "url": transport.url,
        "auth": None if token is None else pb.HttpAuth(header=transport.auth_header, token=SECRET.to_proto(token)),
        "headers": [SECRET.to_proto(secret) for secret in transport.secrets],
        "oauth": None if oauth is None else OAUTH.to_proto(oauth),
    }


def mcp_tool_to_proto(tool: McpTool) -> pb.McpTool:
    """Returns the message of a stored tool."""
    message = _described(tool.remote, SchemaHealth(tool.status, tool.reasons))
    message.MergeFrom(_TOOL.to_proto(tool))
    return message


def listed_tool_to_proto(tool: CheckedTool) -> pb.McpTool:
    """Returns the message of a tool that is not stored."""
    return _described(tool.remote, tool.health)


def within_an_answer(tools: Iterable[pb.McpTool]) -> Sequence[pb.McpTool]:
    """Returns the tools; from the size of an answer on, without their schemas."""
    messages = list(tools)
    count = fitting(messages, lambda message: message.ByteSize(), MAX_PAGE_BYTES)
    for message in messages[count:]:
        for name in ("input_schema", "json_schema", "output_schema", "annotations", "description"):
            message.ClearField(name)
    return messages


def tool_key_from_proto(message: rpc.McpToolReference) -> McpToolKey:
    """Returns what identifies a tool."""
    match message.WhichOneof("tool"):
        case "tool_id":
            return McpToolKey(tool_id=message.tool_id)
        case "name":
            return McpToolKey(name=message.name)
        case _:
            return McpToolKey()


def schema_statuses_from_proto(numbers: Iterable[int]) -> tuple[SchemaStatus, ...]:
    """Returns the statuses of a filter. Raises InvalidArgument if one is unknown."""
    return tuple(enum_from_proto(SchemaStatus, number, "schema_statuses") for number in numbers)


def timeout_from_proto(request: rpc.RunMcpServerToolRequest | rpc.StreamMcpServerToolRequest) -> float | None:
    """Returns the limit of a run in seconds, or None."""
    timeout = optional_field(request, "timeout")
    return None if timeout is None else timeout.seconds + timeout.nanos / 1e9


def run_result_to_proto(result: McpRunResult) -> rpc.RunMcpServerToolResponse:
    """Returns the message of a result."""
    status = message_pb2.TOOL_RETURN_STATUS_SUCCESS if result.ok else message_pb2.TOOL_RETURN_STATUS_ERROR
    parts = []
    for part in result.content:
        if isinstance(part, str):
            parts.append(message_pb2.ContentPart(text=message_pb2.TextPart(text=part)))
        else:
            inline = message_pb2.InlineImage(data=part.data, media_type=part.media_type)
            parts.append(message_pb2.ContentPart(image=message_pb2.ImagePart(inline=inline)))
    return rpc.RunMcpServerToolResponse(
        status=status,
        content=parts,
        structured_content=result.structured,
        duration=Duration(seconds=int(result.seconds), nanos=int(result.seconds % 1 * 1e9)),
    )


def _described(remote: RemoteTool, health: SchemaHealth) -> pb.McpTool:
    return _REMOTE.to_proto(remote, schema_health=health.to_proto())
