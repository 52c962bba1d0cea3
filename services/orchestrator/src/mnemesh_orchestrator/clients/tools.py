"""The tools service over gRPC."""

from collections.abc import Mapping, Sequence
from typing import Final

import grpc
from mnemesh.tools.v1 import execution_service_pb2 as execution_rpc
from mnemesh.tools.v1 import tools_pb2 as pb
from mnemesh.tools.v1 import tools_service_pb2 as rpc
from mnemesh.tools.v1.execution_service_pb2_grpc import ExecutionServiceStub
from mnemesh.tools.v1.mcp_servers_service_pb2_grpc import McpServerServiceStub
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub
from mnemesh_kit.whole_answers import whole_answer
from mnemesh_types.messages import ImagePart

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.mcp_calls import run_on_mcp_server
from mnemesh_orchestrator.clients.programs import run_program
from mnemesh_orchestrator.model.core_memory import Block
from mnemesh_orchestrator.model.custom_tools import CustomTool, OnProgress, ToolResult
from mnemesh_orchestrator.model.images import returned_images
from mnemesh_orchestrator.model.programs import AnswerCall, Program, ProgramResult

_TOOL_SECONDS: Final = 180
_MCP_SECONDS: Final = 60
_RETURN_CHARACTERS: Final = 50_000


class ToolsClient:
    """ToolsPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._tools = ToolServiceStub(channel)
        self._execution = ExecutionServiceStub(channel)
        self._mcp = McpServerServiceStub(channel)
        # The time limits of the tools as of their last definitions. The service stops a tool if its caller gives up,
        # so the deadline of a call must exceed the limit of the tool.
        self._seconds: dict[str, int] = {}

    async def definitions(self, ids: Sequence[str] = (), names: Sequence[str] = ()) -> tuple[CustomTool, ...]:
        """See ToolsPort."""
        request = rpc.BatchGetToolsRequest(tool_ids=ids, names=names)
        response = await whole_answer(self._tools.BatchGetTools, request, seconds=deadlines.READ, field="tools")
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
        project_id: str | None,
        blocks: Sequence[Block],
        environment: Mapping[str, str],
    ) -> tuple[ToolResult, Mapping[str, str]]:
        """See ToolsPort."""
        request = execution_rpc.ExecuteToolRequest(
            tool_id=tool_id,
            arguments=arguments,
            environment=environment,
            agent_state=execution_rpc.AgentState(
                agent_id=agent_id,
                name=agent_name,
                blocks={block.label: block.value for block in blocks},
                project_id=project_id,
                block_properties={
                    block.label: execution_rpc.AgentBlock(description=block.description or "", limit=block.limit)
                    for block in blocks
                },
            ),
        )
        seconds = self._seconds.get(tool_id, _TOOL_SECONDS) + deadlines.EXECUTE_MARGIN
        response = await self._execution.ExecuteTool(request, timeout=seconds)
        images, notes = returned_images(tuple(ImagePart(image.data, image.media_type) for image in response.images))
        result = ToolResult(
            ok=response.status == execution_rpc.EXECUTION_STATUS_SUCCESS,
            text="\n".join(filter(None, (response.result, *notes))),
            images=images,
            stdout=tuple(response.stdout.splitlines()),
            stderr=tuple(response.stderr.splitlines()),
        )
        return result, dict(response.changed_blocks)

    async def run_program(self, program: Program, answer: AnswerCall | None = None) -> ProgramResult:
        """See ToolsPort."""
        return await run_program(self._execution, program, answer)

    async def run_on_mcp_server(
        self,
        tool: CustomTool,
        arguments: str,
        agent_id: str,
        variables: Mapping[str, str],
        on_progress: OnProgress,
    ) -> ToolResult:
        """See ToolsPort."""
        seconds = self._seconds.get(tool.id, _MCP_SECONDS)
        return await run_on_mcp_server(self._mcp, tool, arguments, agent_id, variables, seconds, on_progress)


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
        mcp_server_id=tool.mcp_server_id if tool.type == pb.TOOL_TYPE_MCP else None,
        mcp_tool_name=tool.mcp_tool_name or tool.name,
    )
