"""Tools of MCP servers, and the results of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.paging import MAX_PAGE_BYTES, fitting
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_tools.model.mcp_tools import (
    McpProgress,
    McpRunResult,
    McpTool,
    McpToolKey,
    McpToolOrder,
    RemoteTool,
    SchemaHealth,
    SchemaStatus,
)
from mnemesh_tools.rpc.convert.fields import enum_from_proto, optional_field
from mnemesh_tools.usecases.mcp_listing import CheckedTool

_STATUSES: Final = {
    pb.MCP_SCHEMA_STATUS_STRICT: SchemaStatus.STRICT,
    pb.MCP_SCHEMA_STATUS_NON_STRICT: SchemaStatus.NON_STRICT,
    pb.MCP_SCHEMA_STATUS_INVALID: SchemaStatus.INVALID,
}
_STATUS_NUMBERS: Final = {value: number for number, value in _STATUSES.items()}
_ORDERS: Final = {
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
    return tuple(enum_from_proto(_STATUSES, number, "schema_statuses") for number in numbers)


def mcp_tool_order_from_proto(number: int) -> McpToolOrder:
    """Returns the sort key of a list; the default is the name. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDERS, number, "order_by")


def timeout_from_proto(request: rpc.RunMcpServerToolRequest | rpc.StreamMcpServerToolRequest) -> float | None:
    """Returns the limit of a run in seconds, or None."""
    timeout = optional_field(request, "timeout")
    return None if timeout is None else timeout.seconds + timeout.nanos / 1e9


def progress_to_proto(progress: McpProgress) -> rpc.McpProgress:
    """Returns the message of a progress."""
    return rpc.McpProgress(progress=progress.done, total=progress.total, message=progress.message)


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
        schema_health=pb.McpSchemaHealth(status=_STATUS_NUMBERS[health.status], reasons=health.reasons),
    )
