"""The servicer of `mnemesh.tools.v1.ExecutionService`: decodes, calls a use case, encodes."""

from __future__ import annotations

from typing import Any

import grpc
from mnemesh.tools.v1 import execution_service_pb2 as pb
from mnemesh.tools.v1 import execution_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.principal import current_principal

from mnemesh_tools.rpc.convert.executions import ad_hoc_tool_from_proto, execution_to_proto, invocation_from_proto
from mnemesh_tools.usecases.executions import ExecutionService

Context = grpc.aio.ServicerContext[Any, Any]


class ExecutionServicer(execution_service_pb2_grpc.ExecutionServiceServicer):
    """Serves `mnemesh.tools.v1.ExecutionService`."""

    def __init__(self, service: ExecutionService) -> None:
        self._service = service

    async def ExecuteTool(self, request: pb.ExecuteToolRequest, context: Context) -> pb.ExecuteToolResponse:
        """Executes a stored tool or an ad hoc one."""
        caller, invocation = current_principal(), invocation_from_proto(request)
        match request.WhichOneof("tool"):
            case "tool_id":
                execution = await self._service.execute_tool(caller, request.tool_id, invocation)
            case "ad_hoc":
                tool = ad_hoc_tool_from_proto(request.ad_hoc)
                execution = await self._service.execute_ad_hoc_tool(caller, tool, invocation)
            case _:
                raise InvalidArgument("tool must be set to tool_id or ad_hoc.", field="tool_id")
        return execution_to_proto(execution)
