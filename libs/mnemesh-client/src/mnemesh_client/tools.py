"""Custom tools: their definitions and executions in the sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from mnemesh.tools.v1 import (
    execution_service_pb2,
    execution_service_pb2_grpc,
    tools_pb2,
    tools_service_pb2,
    tools_service_pb2_grpc,
)
from mnemesh_kit.channels import Channel

from mnemesh_client.inputs import ToolSource, source_text
from mnemesh_client.paging import Order, paginate, sort_order

_EXECUTION_SECONDS = 200.0


class ToolsClient:
    """Calls of ToolService and ExecutionService, as `client.tools`.

    Errors: InvalidArgument TOOL_SOURCE_INVALID; AlreadyExists for a name in use; NotFound.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = tools_service_pb2_grpc.ToolServiceStub(channel)
        self.executions = execution_service_pb2_grpc.ExecutionServiceStub(channel)

    async def create(self, source: ToolSource, **fields: Any) -> tools_pb2.Tool:
        """Creates a tool from Python source code or from a function. `fields` are other fields of Tool."""
        request = tools_service_pb2.CreateToolRequest(tool=_tool(source, fields))
        return (await self.stub.CreateTool(request)).tool

    async def upsert(self, source: ToolSource, **fields: Any) -> tools_pb2.Tool:
        """Creates a tool, or replaces the tool with the same name. A replaced tool keeps its id."""
        request = tools_service_pb2.UpsertToolRequest(tool=_tool(source, fields))
        return (await self.stub.UpsertTool(request)).tool

    async def get(self, key: str) -> tools_pb2.Tool:
        """Returns a tool by id or name."""
        named = {"tool_id": key} if key.startswith("tool-") else {"name": key}
        return (await self.stub.GetTool(tools_service_pb2.GetToolRequest(**named))).tool

    def list(
        self, *, names: Sequence[str] = (), order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[tools_pb2.Tool]:
        """Yields tools, newest first unless `order` is "asc"."""
        criteria = tools_service_pb2.ToolFilter(names=names)
        request = tools_service_pb2.ListToolsRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListTools, request, "tools", limit)

    async def delete(self, tool_id: str) -> None:
        """Deletes a tool."""
        await self.stub.DeleteTool(tools_service_pb2.DeleteToolRequest(tool_id=tool_id))

    async def schema(self, source: ToolSource) -> dict[str, Any]:
        """Returns the schema of a function: {"name", "description", "parameters"}. Stores nothing."""
        request = tools_service_pb2.GenerateSchemaRequest(
            source_code=source_text(source), source_type=tools_pb2.SOURCE_TYPE_PYTHON
        )
        schema: dict[str, Any] = json.loads((await self.stub.GenerateSchema(request)).json_schema)
        return schema

    async def run(
        self, tool: ToolSource, arguments: Mapping[str, Any] | None = None
    ) -> execution_service_pb2.ExecuteToolResponse:
        """Executes a stored tool (by "tool-…" id) or source code once in the sandbox.

        A tool that fails does not raise: the response has the status ERROR, TIMED_OUT or KILLED.
        """
        request = execution_service_pb2.ExecuteToolRequest(arguments=json.dumps(dict(arguments or {})))
        if isinstance(tool, str) and tool.startswith("tool-"):
            request.tool_id = tool
        else:
            request.ad_hoc.source_code = source_text(tool)
            request.ad_hoc.source_type = tools_pb2.SOURCE_TYPE_PYTHON
        return await self.executions.ExecuteTool(request, timeout=_EXECUTION_SECONDS)


def _tool(source: ToolSource, fields: Mapping[str, Any]) -> tools_pb2.Tool:
    return tools_pb2.Tool(
        source_code=source_text(source),
        source_type=tools_pb2.SOURCE_TYPE_PYTHON,
        type=tools_pb2.TOOL_TYPE_CUSTOM,
        **fields,
    )
