"""Conversions of MCP servers, their settings and their tools."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import audit_pb2, message_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import MAX_PAGE_BYTES, fitting
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.tools import (
    McpCaller,
    OAuthGrant,
    ProgramHealth,
    Requirement,
    SchemaHealth,
    SchemaStatus,
)
from mnemesh_types.twin import enum_from_proto, number_of, optional_field

from mnemesh_tools.model.mcp_servers import (
    McpAuthorizationStatus,
    McpServer,
    McpServerFilter,
    McpServerOrder,
    McpServerSpec,
    McpTransport,
    TransportType,
)
from mnemesh_tools.model.mcp_settings import McpOAuth, McpProgram, McpSecret
from mnemesh_tools.model.mcp_tools import McpRunResult, McpTool, McpToolKey, McpToolOrder, RemoteTool
from mnemesh_tools.rpc.convert.tools import order_from_proto
from mnemesh_tools.usecases.mcp_contacts import CheckedTool


def mcp_program_from_proto(message: pb.StdioTransport) -> McpTransport:
    """Returns the settings of a program."""
    return McpTransport(
        TransportType.STDIO,
        secrets=tuple(secret_from_proto(value) for value in message.env),
        program=McpProgram(
            message.command,
            tuple(message.args),
            tuple(map(Requirement.from_proto, message.pip_requirements)),
            tuple(map(Requirement.from_proto, message.npm_requirements)),
            tuple(message.network_hosts),
            message.persistent_directory,
        ),
    )


def mcp_program_to_proto(transport: McpTransport) -> pb.StdioTransport:
    """Returns the message of a program, without values of secrets."""
    program = transport.program
    return pb.StdioTransport(
        command=program.command,
        args=program.args,
        env=[secret_to_proto(secret) for secret in transport.secrets],
        pip_requirements=map(Requirement.to_proto, program.pip_requirements),
        npm_requirements=map(Requirement.to_proto, program.npm_requirements),
        network_hosts=program.network_hosts,
        persistent_directory=program.persistent_directory,
    )


def oauth_from_proto(message: pb.McpOAuth) -> McpOAuth:
    """Returns the OAuth settings. Raises InvalidArgument if the grant is unknown."""
    has_secret = message.HasField("client_secret")
    return McpOAuth(
        enum_from_proto(OAuthGrant, message.grant, "oauth.grant"),
        optional_field(message, "client_id"),
        McpSecret("", optional_field(message.client_secret, "value")) if has_secret else None,
        optional_field(message, "scope"),
        optional_field(message, "issuer"),
    )


def oauth_to_proto(oauth: McpOAuth) -> pb.McpOAuth:
    """Returns the message of the OAuth settings, without the secret and the tokens."""
    session = oauth.session
    return pb.McpOAuth(
        grant=number_of(oauth.grant),
        client_id=oauth.client_id,
        client_secret=None if oauth.client_secret is None else secret_to_proto(oauth.client_secret),
        scope=oauth.scope,
        issuer=oauth.issuer,
        authorized=session is not None,
        expire_time=None if session is None or session.expires_at is None else timestamp_to_proto(session.expires_at),
    )


def secret_from_proto(message: pb.McpSecret) -> McpSecret:
    """Returns a secret of a request."""
    return McpSecret(message.name, optional_field(message, "value"))


def secret_to_proto(secret: McpSecret) -> pb.McpSecret:
    """Returns the message of a secret. Only a value that consists of variables is stored as text."""
    return pb.McpSecret(name=secret.name, value=secret.value, has_value=secret.has_value)


R = TypeVar("R", rpc.CreateMcpServerRequest, rpc.UpdateMcpServerRequest)

AUTHORIZATION_STATUSES: Final = {
    McpAuthorizationStatus.PENDING: rpc.MCP_AUTHORIZATION_STATUS_PENDING,
    McpAuthorizationStatus.CLAIMED: rpc.MCP_AUTHORIZATION_STATUS_PENDING,
    McpAuthorizationStatus.COMPLETED: rpc.MCP_AUTHORIZATION_STATUS_COMPLETED,
    McpAuthorizationStatus.FAILED: rpc.MCP_AUTHORIZATION_STATUS_FAILED,
}
_SERVER_ORDERS: Final = {
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
        status=number_of(contact.status),
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
        message.program.CopyFrom(health.to_proto())
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
        transports=tuple(transport_type_from_proto(number) for number in request.transport_types),
    )


def transport_type_from_proto(number: int) -> TransportType:
    """Returns the kind of a transport. Raises InvalidArgument if it is unknown."""
    if number not in _TYPES:
        raise InvalidArgument(f"transport_types has the unknown value {number}.", field="transport_types")
    return _TYPES[rpc.McpTransportType.ValueType(number)]


def mcp_server_order_from_proto(number: int) -> McpServerOrder:
    """Returns the sort key of a list; the default is the create time. Raises InvalidArgument if it is unknown."""
    return order_from_proto(_SERVER_ORDERS, number)


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


_TOOL_ORDERS: Final = {
    rpc.MCP_SERVER_TOOL_ORDER_BY_UNSPECIFIED: McpToolOrder.NAME,
    rpc.MCP_SERVER_TOOL_ORDER_BY_NAME: McpToolOrder.NAME,
    rpc.MCP_SERVER_TOOL_ORDER_BY_CREATE_TIME: McpToolOrder.CREATE_TIME,
}


def mcp_tool_to_proto(tool: McpTool) -> pb.McpTool:
    """Returns the message of a stored tool."""
    message = _described(tool.remote, SchemaHealth(tool.status, tool.reasons))
    message.tool_id, message.mcp_server_id = tool.tool_id, tool.server_id
    if tool.json_schema is not None:
        message.json_schema = tool.json_schema
    message.create_time.CopyFrom(timestamp_to_proto(tool.created_at))
    message.update_time.CopyFrom(timestamp_to_proto(tool.updated_at))
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


def mcp_tool_order_from_proto(number: int) -> McpToolOrder:
    """Returns the sort key of a list; the default is the name. Raises InvalidArgument if it is unknown."""
    return order_from_proto(_TOOL_ORDERS, number)


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
    return pb.McpTool(
        name=remote.name,
        description=remote.description,
        input_schema=remote.input_schema,
        output_schema=remote.output_schema,
        annotations=remote.annotations,
        schema_health=health.to_proto(),
    )
