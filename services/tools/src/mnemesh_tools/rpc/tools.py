"""The RPCs of the tools service: decode, call, encode."""

from __future__ import annotations

from typing import Any

from mnemesh.tools.v1 import (
    execution_service_pb2 as execution_pb,
)
from mnemesh.tools.v1 import (
    execution_service_pb2_grpc,
    mcp_servers_service_pb2_grpc,
    tools_service_pb2_grpc,
)
from mnemesh.tools.v1 import (
    tools_service_pb2 as pb,
)
from mnemesh_kit.errors import InvalidArgument, Unimplemented
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_query

from mnemesh_tools.model.tools import SourceType
from mnemesh_tools.rpc.convert import tools as convert
from mnemesh_tools.usecases.executions import ExecutionService
from mnemesh_tools.usecases.tools import ToolService


class ToolsServicer(tools_service_pb2_grpc.ToolServiceServicer):
    """`mnemesh.tools.v1.ToolService`; SearchTools answers UNIMPLEMENTED."""

    def __init__(self, service: ToolService) -> None:
        self._service = service

    async def CreateTool(self, request: pb.CreateToolRequest, context: Any) -> pb.CreateToolResponse:
        spec = convert.spec_from_proto(request.tool)
        tool = await self._service.create(spec, request_key(request, "CreateTool"))
        return pb.CreateToolResponse(tool=convert.tool_to_proto(tool))

    async def UpsertTool(self, request: pb.UpsertToolRequest, context: Any) -> pb.UpsertToolResponse:
        spec = convert.spec_from_proto(request.tool)
        written = convert.written_fields(request.update_mask, request.tool, whole_if_empty=True)
        tool, created = await self._service.upsert(spec, written, request_key(request, "UpsertTool"))
        return pb.UpsertToolResponse(tool=convert.tool_to_proto(tool), created=created)

    async def GetTool(self, request: pb.GetToolRequest, context: Any) -> pb.GetToolResponse:
        match request.WhichOneof("key"):
            case "tool_id":
                tool = await self._service.get(require_id(request.tool_id, "tool", "tool_id"))
            case "name":
                tool = await self._service.get_by_name(request.name)
            case _:
                raise InvalidArgument("Either tool_id or name is required.", field="tool_id")
        return pb.GetToolResponse(tool=convert.tool_to_proto(tool))

    async def BatchGetTools(self, request: pb.BatchGetToolsRequest, context: Any) -> pb.BatchGetToolsResponse:
        tools = await self._service.get_many(request.tool_ids, request.names)
        return pb.BatchGetToolsResponse(tools=[convert.tool_to_proto(tool) for tool in tools])

    async def ListTools(self, request: pb.ListToolsRequest, context: Any) -> pb.ListToolsResponse:
        query = page_query(request, default_ascending=False)
        order = convert.order_from_proto(request.order_by)
        page = await self._service.list(convert.filter_from_proto(request.filter), order, query)
        return pb.ListToolsResponse(
            tools=[convert.tool_to_proto(tool) for tool in page.items], next_page_token=next_page_token(query, page)
        )

    async def CountTools(self, request: pb.CountToolsRequest, context: Any) -> pb.CountToolsResponse:
        return pb.CountToolsResponse(count=await self._service.count(convert.filter_from_proto(request.filter)))

    async def UpdateTool(self, request: pb.UpdateToolRequest, context: Any) -> pb.UpdateToolResponse:
        tool_id = require_id(request.tool.id, "tool", "tool.id")
        spec = convert.spec_from_proto(request.tool)
        written = convert.written_fields(request.update_mask, request.tool, whole_if_empty=False)
        tool = await self._service.update(tool_id, spec, written, request_key(request, "UpdateTool"))
        return pb.UpdateToolResponse(tool=convert.tool_to_proto(tool))

    async def DeleteTool(self, request: pb.DeleteToolRequest, context: Any) -> pb.DeleteToolResponse:
        tool_id = require_id(request.tool_id, "tool", "tool_id")
        await self._service.delete(tool_id, request_key(request, "DeleteTool"))
        return pb.DeleteToolResponse()

    async def GenerateSchema(self, request: pb.GenerateSchemaRequest, context: Any) -> pb.GenerateSchemaResponse:
        if convert.source_type_from_proto(request.source_type, "source_type") is not SourceType.PYTHON:
            raise Unimplemented("Schemas are made of Python source only.", field="source_type")
        return pb.GenerateSchemaResponse(json_schema=self._service.generate_schema(request.source_code))

    async def SearchTools(self, request: pb.SearchToolsRequest, context: Any) -> pb.SearchToolsResponse:
        raise Unimplemented("Tools cannot be searched by meaning yet; ListTools filters by words.")

    async def EnsureBaseTools(self, request: pb.EnsureBaseToolsRequest, context: Any) -> pb.EnsureBaseToolsResponse:
        specs = [convert.spec_from_proto(tool) for tool in request.tools]
        tools = await self._service.ensure_builtins(specs, request_key(request, "EnsureBaseTools"))
        return pb.EnsureBaseToolsResponse(tools=[convert.tool_to_proto(tool) for tool in tools])


class ExecutionServicer(execution_service_pb2_grpc.ExecutionServiceServicer):
    """`mnemesh.tools.v1.ExecutionService`."""

    def __init__(self, service: ExecutionService) -> None:
        self._service = service

    async def ExecuteTool(
        self, request: execution_pb.ExecuteToolRequest, context: Any
    ) -> execution_pb.ExecuteToolResponse:
        given = (
            request.arguments,
            dict(request.environment),
            convert.agent_from_proto(request),
            convert.timeout_from_proto(request),
        )
        match request.WhichOneof("tool"):
            case "tool_id":
                tool_id = require_id(request.tool_id, "tool", "tool_id")
                execution = await self._service.execute_stored(tool_id, *given)
            case "ad_hoc":
                execution = await self._service.execute_ad_hoc(convert.ad_hoc_from_proto(request.ad_hoc), *given)
            case _:
                raise InvalidArgument("Either tool_id or ad_hoc is required.", field="tool_id")
        return convert.execution_to_proto(execution)


class McpServersServicer(mcp_servers_service_pb2_grpc.McpServerServiceServicer):
    """`mnemesh.tools.v1.McpServerService`; every RPC answers UNIMPLEMENTED."""
