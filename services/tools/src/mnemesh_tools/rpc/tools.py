"""The servicer of `mnemesh.tools.v1.ToolService`: decodes, calls a use case, encodes."""

from collections.abc import Callable
from typing import Any

import grpc
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2_grpc
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh_kit.access import service_only
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.paging import bounded, bounded_hits, next_page_token, offset_from_token, page_query
from mnemesh_types.tools import PackagesStatus, SourceType
from mnemesh_types.twin import enum_from_proto

from mnemesh_tools.model.tools import Tool, ToolOrder
from mnemesh_tools.rpc.convert.tools import (
    R,
    request_without_secrets,
    restored_from_proto,
    tool_filter_from_proto,
    tool_hit_to_proto,
    tool_search_filter_from_proto,
    tool_spec_from_proto,
    tool_to_proto,
    written_fields_from_proto,
)
from mnemesh_tools.usecases.tool_search import ToolFinder
from mnemesh_tools.usecases.tools import ToolService

Context = grpc.aio.ServicerContext[Any, Any]


class ToolsServicer(tools_service_pb2_grpc.ToolServiceServicer):
    """Serves `mnemesh.tools.v1.ToolService`."""

    def __init__(
        self,
        service: ToolService,
        finder: ToolFinder,
        packages: Callable[[Tool], PackagesStatus | None],
        fingerprint: Callable[[str], str],
    ) -> None:
        """Serves tools.

        Args:
            service: The use cases of tools.
            finder: The search.
            packages: Returns the state of a tool's packages on this server.
            fingerprint: Stands for a secret where requests are compared.
        """
        self._fingerprint = fingerprint
        self._service = service
        self._finder = finder
        self._packages = packages

    async def CreateTool(self, request: pb.CreateToolRequest, context: Context) -> pb.CreateToolResponse:
        spec, key = tool_spec_from_proto(request.tool), self._key(request, "CreateTool")
        restored = restored_from_proto(request.tool) if service_only(request.restore, "restore") else None
        tool = await self._service.create_tool(current_principal(), spec, key, restored)
        return pb.CreateToolResponse(tool=self._to_proto(tool))

    async def UpsertTool(self, request: pb.UpsertToolRequest, context: Context) -> pb.UpsertToolResponse:
        """Creates a tool, or changes the one with the same name."""
        tool, created = await self._service.upsert_tool(
            current_principal(),
            tool_spec_from_proto(request.tool),
            written_fields_from_proto(request.update_mask, request.tool, default_to_set=True),
            self._key(request, "UpsertTool"),
        )
        return pb.UpsertToolResponse(tool=self._to_proto(tool), created=created)

    async def GetTool(self, request: pb.GetToolRequest, context: Context) -> pb.GetToolResponse:
        caller = current_principal()
        match request.WhichOneof("key"):
            case "tool_id":
                tool = await self._service.get_tool(caller, request.tool_id)
            case "name":
                tool = await self._service.get_tool_by_name(caller, request.name)
            case _:
                raise InvalidArgument("key must be set to tool_id or name.", field="tool_id")
        return pb.GetToolResponse(tool=self._to_proto(tool))

    async def BatchGetTools(self, request: pb.BatchGetToolsRequest, context: Context) -> pb.BatchGetToolsResponse:
        found = await self._service.batch_get_tools(
            current_principal(), request.tool_ids, request.names, offset_from_token(request)
        )
        tools, token = bounded_hits(request, [None if tool is None else self._to_proto(tool) for tool in found])
        return pb.BatchGetToolsResponse(tools=tools, next_page_token=token)

    async def ListTools(self, request: pb.ListToolsRequest, context: Context) -> pb.ListToolsResponse:
        query = page_query(request, default_ascending=False)
        filter_, order = (
            tool_filter_from_proto(request.filter),
            enum_from_proto(ToolOrder, request.order_by, "order_by"),
        )
        found = await self._service.list_tools(current_principal(), filter_, order, query)
        page = bounded(query, found.map(self._to_proto))
        return pb.ListToolsResponse(tools=page.items, next_page_token=next_page_token(query, page))

    async def CountTools(self, request: pb.CountToolsRequest, context: Context) -> pb.CountToolsResponse:
        count = await self._service.count_tools(current_principal(), tool_filter_from_proto(request.filter))
        return pb.CountToolsResponse(count=count)

    async def UpdateTool(self, request: pb.UpdateToolRequest, context: Context) -> pb.UpdateToolResponse:
        tool = await self._service.update_tool(
            current_principal(),
            request.tool.id,
            tool_spec_from_proto(request.tool),
            written_fields_from_proto(request.update_mask, request.tool, default_to_set=False),
            self._key(request, "UpdateTool"),
        )
        return pb.UpdateToolResponse(tool=self._to_proto(tool))

    async def DeleteTool(self, request: pb.DeleteToolRequest, context: Context) -> pb.DeleteToolResponse:
        key = request_key(request, "DeleteTool")
        await self._service.delete_tool(current_principal(), request.tool_id, key)
        return pb.DeleteToolResponse()

    async def GenerateSchema(self, request: pb.GenerateSchemaRequest, context: Context) -> pb.GenerateSchemaResponse:
        source_type = enum_from_proto(SourceType, request.source_type, "source_type")
        schema = await self._service.generate_schema(current_principal(), request.source_code, source_type)
        return pb.GenerateSchemaResponse(json_schema=schema)

    async def SearchTools(self, request: pb.SearchToolsRequest, context: Context) -> pb.SearchToolsResponse:
        offset = offset_from_token(request)
        found = await self._finder.search(
            current_principal(), request.query, tool_search_filter_from_proto(request), request.limit
        )
        left = [tool_hit_to_proto(hit, self._to_proto(hit.tool)) for hit in found[offset:]]
        hits, token = bounded_hits(request, left)
        return pb.SearchToolsResponse(hits=hits, next_page_token=token)

    async def EnsureBaseTools(self, request: pb.EnsureBaseToolsRequest, context: Context) -> pb.EnsureBaseToolsResponse:
        specs = [tool_spec_from_proto(tool) for tool in request.tools]
        key = request_key(request, "EnsureBaseTools")
        tools = await self._service.ensure_base_tools(current_principal(), specs, key)
        return pb.EnsureBaseToolsResponse(tools=[self._to_proto(tool) for tool in tools])

    def _key(self, request: R, method: str) -> RequestKey | None:
        return request_key(request_without_secrets(request, self._fingerprint), method)

    def _to_proto(self, tool: Tool) -> tools_pb2.Tool:
        return tool_to_proto(tool, self._packages(tool))
