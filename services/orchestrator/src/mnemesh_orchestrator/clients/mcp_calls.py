"""Calls of tools of MCP servers over gRPC."""

from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import mcp_servers_service_pb2 as pb
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import DeadlineExceeded, Unavailable
from mnemesh_types.messages import ImagePart

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.custom_tools import CallProgress, CustomTool, OnProgress, ToolResult
from mnemesh_orchestrator.model.images import returned_images

if TYPE_CHECKING:  # only the stub file has this class
    from mnemesh.tools.v1.mcp_servers_service_pb2_grpc import McpServerServiceAsyncStub

_UNREACHABLE: Final = "MCP_SERVER_UNREACHABLE"
_LATE: Final = (
    "The tool {name} did not end in time, its outcome is unknown. It was not run again; check before you repeat it."
)


async def run_on_mcp_server(
    stub: "McpServerServiceAsyncStub",
    tool: CustomTool,
    arguments: str,
    agent_id: str,
    variables: Mapping[str, str],
    seconds: int,
    on_progress: OnProgress,
) -> ToolResult:
    """Runs a tool within `seconds`; see `ToolsPort.run_on_mcp_server`."""
    request = pb.StreamMcpServerToolRequest(
        mcp_server_id=tool.mcp_server_id or "",
        tool=pb.McpToolReference(name=tool.mcp_tool_name),
        arguments=arguments,
        caller=pb.McpCaller(agent_id=agent_id, variables=variables),
        timeout=Duration(seconds=seconds),
    )
    call: Any = stub.StreamMcpServerTool(request, timeout=seconds + deadlines.EXECUTE_MARGIN)
    try:
        # Closing the responses early cancels the call.
        async with aclosing(aiter(call)) as responses:
            async for response in responses:
                if response.WhichOneof("message") == "result":
                    return _result(response.result)
                on_progress(_progress(response.progress))
    except Unavailable as error:
        if error.reason != _UNREACHABLE:
            raise
        return ToolResult(ok=False, text=f"Error: {error.message} The tool was not run.")
    except DeadlineExceeded:
        return ToolResult(ok=False, text=_LATE.format(name=tool.name))
    raise Unavailable("The tools service ended the call without a result.")


def _progress(progress: pb.McpProgress) -> CallProgress:
    return CallProgress(
        progress.progress,
        progress.total if progress.HasField("total") else None,
        progress.message if progress.HasField("message") else None,
    )


def _result(response: pb.RunMcpServerToolResponse) -> ToolResult:
    images, notes = returned_images(
        tuple(
            ImagePart(part.image.inline.data, part.image.inline.media_type)
            for part in response.content
            if part.HasField("image")
        )
    )
    texts = [part.text.text for part in response.content if part.HasField("text")] + list(notes)
    is_ok = response.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    return ToolResult(is_ok, "\n".join(texts) or response.structured_content, images=images)
