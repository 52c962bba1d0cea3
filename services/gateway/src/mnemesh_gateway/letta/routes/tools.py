"""Tools: create, upsert, retrieve, list, count, update, delete, search, schemas and trial runs of source code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.tools.v1 import tools_pb2 as pb
from mnemesh.tools.v1 import tools_service_pb2 as rpc

from mnemesh_gateway.letta.convert.tools import (
    fields_to_proto,
    return_of_trial,
    source_type_to_proto,
    tool_from_proto,
    trial_to_proto,
)
from mnemesh_gateway.letta.convert.values import json_from_text, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.schemas.tools import RunSource, SearchTools, Tool, ToolFields, ToolHit, ToolSource

operations = Operations()
_WRITE_SECONDS: Final = 60.0
_RUN_SECONDS: Final = 240.0
_TYPES: Final = {"custom": pb.TOOL_TYPE_CUSTOM, "external_mcp": pb.TOOL_TYPE_MCP}
"""The types of Letta's that are not built-in tools; every other one is."""


class ListTools(msgspec.Struct, kw_only=True):
    """The query of a list of tools."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    name: str | None = None
    names: list[str] | None = None
    tool_ids: list[str] | None = None
    search: str | None = None
    tool_types: list[str] | None = None
    exclude_tool_types: list[str] | None = None


@operations.post("/tools/", body=ToolFields, result=Tool)
async def create_tool(call: Call[NoQuery, ToolFields]) -> Tool:
    """Creates a tool from its source, whose last function gives the name."""
    request = rpc.CreateToolRequest(request_id=call.request_id, tool=_new(call.body))
    return tool_from_proto((await call.mesh.tools.CreateTool(request, timeout=_WRITE_SECONDS)).tool)


@operations.put("/tools/", body=ToolFields, result=Tool)
async def upsert_tool(call: Call[NoQuery, ToolFields]) -> Tool:
    """Creates a tool, or updates the one with the same name, which keeps its id."""
    request = rpc.UpsertToolRequest(request_id=call.request_id, tool=_new(call.body))
    return tool_from_proto((await call.mesh.tools.UpsertTool(request, timeout=_WRITE_SECONDS)).tool)


@operations.get("/tools/", query=ListTools, result=list[Tool])
async def list_tools(call: Call[ListTools, None]) -> list[Tool]:
    """Lists tools, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListToolsRequest(filter=_filter(query))
    rows = await listed(call.mesh.tools.ListTools, request, "tools", page, default="desc")
    return [tool_from_proto(tool) for tool in rows]


@operations.get("/tools/count", query=ListTools, result=int)
async def count_tools(call: Call[ListTools, None]) -> int:
    """Counts tools."""
    request = rpc.CountToolsRequest(filter=_filter(call.query))
    return int((await call.mesh.tools.CountTools(request, timeout=READ_SECONDS)).count)


@operations.post("/tools/search", body=SearchTools, result=list[ToolHit])
async def search_tools(call: Call[NoQuery, SearchTools]) -> list[ToolHit]:
    """Searches tools by what they do, best first."""
    body = call.body
    if not 1 <= body.limit <= 100:
        raise invalid_field("Input should be between 1 and 100", "body", "limit")
    request = rpc.SearchToolsRequest(query=body.query or "", limit=body.limit, tags_any=body.tags or ())
    request.types.extend(_types(body.tool_types))
    hits = (await call.mesh.tools.SearchTools(request, timeout=READ_SECONDS)).hits
    return [
        ToolHit(
            tool=tool_from_proto(hit.tool),
            fts_rank=hit.text_rank if hit.HasField("text_rank") else None,
            vector_rank=hit.vector_rank if hit.HasField("vector_rank") else None,
            combined_score=hit.score,
        )
        for hit in hits
    ]


@operations.post("/tools/generate-schema", body=ToolSource, result=dict[str, Any])
async def generate_json_schema(call: Call[NoQuery, ToolSource]) -> dict[str, Any]:
    """Returns the schema of source code. Nothing is stored."""
    request = rpc.GenerateSchemaRequest(
        source_code=call.body.code, source_type=source_type_to_proto(call.body.source_type, "body", "source_type")
    )
    response = await call.mesh.tools.GenerateSchema(request, timeout=READ_SECONDS)
    schema: dict[str, Any] = json_from_text(response.json_schema)
    return schema


@operations.post("/tools/run", body=RunSource, result=dict[str, Any])
async def run_tool_from_source(call: Call[NoQuery, RunSource]) -> dict[str, Any]:
    """Runs source code as a tool once, and returns the message with its result. Nothing is stored."""
    started = datetime.now(UTC)
    response = await call.mesh.execution.ExecuteTool(trial_to_proto(call.body, call.request_id), timeout=_RUN_SECONDS)
    return return_of_trial(response, started)


@operations.post("/tools/add-base-tools", result=list[Tool])
async def add_base_tools(call: Call[NoQuery, None]) -> list[Tool]:
    """Returns the built-in tools, which every organization has."""
    request = rpc.ListToolsRequest(filter=rpc.ToolFilter(types=[pb.TOOL_TYPE_BUILTIN]))
    rows = await listed(call.mesh.tools.ListTools, request, "tools", PageQuery(limit=1000), default="asc")
    return [tool_from_proto(row) for row in rows]


@operations.get("/tools/{tool_id}", result=Tool)
async def retrieve_tool(call: Call[NoQuery, None]) -> Tool:
    """Returns a tool."""
    request = rpc.GetToolRequest(tool_id=call.path["tool_id"])
    return tool_from_proto((await call.mesh.tools.GetTool(request, timeout=READ_SECONDS)).tool)


@operations.patch("/tools/{tool_id}", body=ToolFields, result=Tool)
async def modify_tool(call: Call[NoQuery, ToolFields]) -> Tool:
    """Updates a tool. A changed source generates the schema again."""
    tool = pb.Tool(id=call.path["tool_id"])
    request = rpc.UpdateToolRequest(request_id=call.request_id)
    request.update_mask.paths.extend(fields_to_proto(call.body, tool))
    request.tool.CopyFrom(tool)
    if request.update_mask.paths:
        await call.mesh.tools.UpdateTool(request, timeout=_WRITE_SECONDS)
    get = rpc.GetToolRequest(tool_id=tool.id)
    return tool_from_proto((await call.mesh.tools.GetTool(get, timeout=READ_SECONDS)).tool)


@operations.delete("/tools/{tool_id}")
async def delete_tool(call: Call[NoQuery, None]) -> None:
    """Deletes a tool. A built-in tool is kept: on the Letta server, the next list restores it."""
    get = rpc.GetToolRequest(tool_id=call.path["tool_id"])
    if (await call.mesh.tools.GetTool(get, timeout=READ_SECONDS)).tool.type == pb.TOOL_TYPE_BUILTIN:
        return
    request = rpc.DeleteToolRequest(request_id=call.request_id, tool_id=call.path["tool_id"])
    await call.mesh.tools.DeleteTool(request, timeout=_WRITE_SECONDS)


def _new(body: ToolFields) -> pb.Tool:
    if not body.source_code:
        raise invalid_field("Field required", "body", "source_code")
    tool = pb.Tool(type=pb.TOOL_TYPE_CUSTOM, source_type=pb.SOURCE_TYPE_PYTHON)
    fields_to_proto(body, tool)
    return tool


def _filter(query: ListTools) -> rpc.ToolFilter:
    found = rpc.ToolFilter(
        tool_ids=query.tool_ids or (),
        names=[*(query.names or ()), *([query.name] if query.name else ())],
        types=_types(query.tool_types),
        exclude_types=_types(query.exclude_tool_types),
    )
    set_present(found, text_search=query.search)
    return found


def _types(names: list[str] | None) -> list[pb.ToolType.ValueType]:
    return list(dict.fromkeys(_TYPES.get(name, pb.TOOL_TYPE_BUILTIN) for name in names or ()))
