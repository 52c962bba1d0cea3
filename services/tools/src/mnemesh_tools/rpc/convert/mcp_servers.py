"""MCP servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_tools.model.mcp_authorizations import McpAuthorizationStatus
from mnemesh_tools.model.mcp_programs import ProgramHealth
from mnemesh_tools.model.mcp_secrets import McpSecret
from mnemesh_tools.model.mcp_servers import (
    McpCaller,
    McpServer,
    McpServerFilter,
    McpServerOrder,
    McpServerSpec,
    McpServerStatus,
    McpTransport,
    TransportType,
)
from mnemesh_tools.rpc.convert.fields import enum_from_proto, optional_field
from mnemesh_tools.rpc.convert.mcp_settings import (
    mcp_program_from_proto,
    mcp_program_to_proto,
    oauth_from_proto,
    oauth_to_proto,
    program_health_to_proto,
    secret_from_proto,
    secret_to_proto,
)

R = TypeVar("R", rpc.CreateMcpServerRequest, rpc.UpdateMcpServerRequest)

STATUSES: Final = {
    McpServerStatus.UNKNOWN: pb.MCP_SERVER_STATUS_UNKNOWN,
    McpServerStatus.REACHABLE: pb.MCP_SERVER_STATUS_REACHABLE,
    McpServerStatus.UNREACHABLE: pb.MCP_SERVER_STATUS_UNREACHABLE,
    McpServerStatus.DISABLED: pb.MCP_SERVER_STATUS_DISABLED,
    McpServerStatus.UNAUTHORIZED: pb.MCP_SERVER_STATUS_UNAUTHORIZED,
}
AUTHORIZATION_STATUSES: Final = {
    McpAuthorizationStatus.PENDING: rpc.MCP_AUTHORIZATION_STATUS_PENDING,
    McpAuthorizationStatus.CLAIMED: rpc.MCP_AUTHORIZATION_STATUS_PENDING,
    McpAuthorizationStatus.COMPLETED: rpc.MCP_AUTHORIZATION_STATUS_COMPLETED,
    McpAuthorizationStatus.FAILED: rpc.MCP_AUTHORIZATION_STATUS_FAILED,
}
_ORDERS: Final = {
    rpc.MCP_SERVER_ORDER_BY_UNSPECIFIED: McpServerOrder.CREATE_TIME,
    rpc.MCP_SERVER_ORDER_BY_CREATE_TIME: McpServerOrder.CREATE_TIME,
    rpc.MCP_SERVER_ORDER_BY_UPDATE_TIME: McpServerOrder.UPDATE_TIME,
    rpc.MCP_SERVER_ORDER_BY_NAME: McpServerOrder.NAME,
}
_TYPES: Final = {
    rpc.MCP_TRANSPORT_TYPE_STDIO: TransportType.STDIO,
    rpc.MCP_TRANSPORT_TYPE_SSE: TransportType.SSE,
    rpc.MCP_TRANSPORT_TYPE_STREAMABLE_HTTP: TransportType.STREAMABLE_HTTP,
}
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
            transport = mcp_program_from_proto(message.stdio)
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
    contact = server.contact
    message = pb.McpServer(
        id=server.id,
        name=server.name,
        metadata=server.metadata,
        status=STATUSES[contact.status],
        status_message=contact.message,
        last_contact_time=None if contact.contact_at is None else timestamp_to_proto(contact.contact_at),
        last_refresh_time=None if contact.refresh_at is None else timestamp_to_proto(contact.refresh_at),
        tool_count=contact.tool_count,
        protocol_version=contact.protocol_version,
        revision=server.revision,
        create_time=timestamp_to_proto(server.created_at),
        update_time=timestamp_to_proto(server.updated_at),
        provenance=audit_pb2.Provenance(
            created_by_id=server.created_by_id, last_updated_by_id=server.last_updated_by_id
        ),
    )
    transport = server.transport
    if health is not None:
        message.program.CopyFrom(program_health_to_proto(health))
    if transport.type is TransportType.STDIO:
        message.stdio.CopyFrom(mcp_program_to_proto(transport))
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
    return McpServerFilter(
        ids=tuple(request.mcp_server_ids),
        name=optional_field(request, "name"),
        transports=tuple(enum_from_proto(_TYPES, number, "transport_types") for number in request.transport_types),
    )


def mcp_server_order_from_proto(number: int) -> McpServerOrder:
    """Returns the sort key of a list; the default is the create time. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDERS, number, "order_by")


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
        token=McpSecret("", optional_field(message.auth.token, "value")) if has_auth else None,
        secrets=tuple(secret_from_proto(value) for value in message.headers),
        oauth=oauth_from_proto(message.oauth) if message.HasField("oauth") else None,
    )


def _http_fields(transport: McpTransport) -> dict[str, Any]:
    token, oauth = transport.token, transport.oauth
    return {
        "url": transport.url,
        "auth": None if token is None else pb.HttpAuth(header=transport.auth_header, token=secret_to_proto(token)),
        "headers": [secret_to_proto(secret) for secret in transport.secrets],
        "oauth": None if oauth is None else oauth_to_proto(oauth),
    }
