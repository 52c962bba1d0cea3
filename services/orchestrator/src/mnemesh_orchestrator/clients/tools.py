"""The tools service over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Final

import grpc
from mnemesh.tools.v1 import execution_service_pb2 as execution_rpc
from mnemesh.tools.v1 import tools_pb2 as pb
from mnemesh.tools.v1 import tools_service_pb2 as rpc
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.custom_tools import CustomTool, ToolResult

_TOOL_SECONDS: Final = 180
_RETURN_CHARACTERS: Final = 50_000


class ToolsClient:
    """ToolsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._tools = ToolServiceStub(channel)
        self._execution = ExecutionServiceStub(channel)
        # The time limits of the tools as of their last definitions. The service stops a tool if its caller gives up,
        # so the deadline of a call must exceed the limit of the tool.
        self._seconds: dict[str, int] = {}

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        """See ToolsPort."""
        request = rpc.BatchGetToolsRequest(tool_ids=ids, names=names)
        response = await self._tools.BatchGetTools(request, timeout=deadlines.READ)
        self._seconds |= {tool.id: tool.timeout_seconds for tool in response.tools if tool.timeout_seconds}
        return tuple(tool_from_proto(tool) for tool in response.tools)

    async def upsert_source(self, request_id: str, source_code: str) -> CustomTool:
        """See ToolsPort."""
        tool = pb.Tool(type=pb.TOOL_TYPE_CUSTOM, source_type=pb.SOURCE_TYPE_PYTHON, source_code=source_code)
        request = rpc.UpsertToolRequest(request_id=request_id, tool=tool)
        response = await self._tools.UpsertTool(request, timeout=deadlines.WRITE)
        return tool_from_proto(response.tool)

    async def execute(
        self,
        tool_id: str,
        arguments: str,
        *,
        agent_id: str,
        agent_name: str,
        blocks: Mapping[str, str],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        """See ToolsPort."""
        request = execution_rpc.ExecuteToolRequest(
            tool_id=tool_id,
            arguments=arguments,
            environment=environment,
            agent_state=execution_rpc.AgentState(agent_id=agent_id, name=agent_name, blocks=blocks),
        )
        seconds = self._seconds.get(tool_id, _TOOL_SECONDS) + deadlines.EXECUTE_MARGIN
        response = await self._execution.ExecuteTool(request, timeout=seconds)
        result = ToolResult(
            ok=response.status == execution_rpc.EXECUTION_STATUS_SUCCESS,
            text=response.result,
            stdout=tuple(response.stdout.splitlines()),
            stderr=tuple(response.stderr.splitlines()),
        )
        return result, dict(response.changed_blocks)


def tool_from_proto(tool: pb.Tool) -> CustomTool:
    """Returns the tool of a message."""
    return CustomTool(
        id=tool.id,
        name=tool.name,
        json_schema=tool.json_schema,
        return_char_limit=tool.return_char_limit or _RETURN_CHARACTERS,
        requires_approval=tool.default_requires_approval,
        parallel=tool.enable_parallel_execution,
        idempotent=tool.idempotent,
        revision=tool.revision,
        builtin=tool.type == pb.TOOL_TYPE_BUILTIN,
    )
