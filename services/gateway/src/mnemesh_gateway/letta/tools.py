"""Tools: create, upsert, retrieve, list, count, update, delete, search, schemas and trial runs of source code."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from mnemesh.tools.v1 import execution_service_pb2
from mnemesh.tools.v1 import tools_pb2 as pb
from mnemesh.tools.v1 import tools_service_pb2 as rpc
from mnemesh_kit.paging import whole_answer
from mnemesh_letta.convert.resources import OTHER_BUILTIN, TYPE_OF_BUILTIN
from mnemesh_letta.convert.values import fill, json_text, json_value, present, set_present, shown

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, PageQuery, cut, list_page
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read


class Requirement(msgspec.Struct, kw_only=True):
    """A package that a tool needs."""

    name: str
    version: str | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool, as agents and lists show it."""

    id: str
    tool_type: str
    description: str | None = None
    source_type: str | None = None
    name: str | None = None
    tags: list[str] = []
    source_code: str | None = None
    json_schema: dict[str, Any] | None = None
    args_json_schema: dict[str, Any] | None = None
    return_char_limit: int | None = None
    pip_requirements: list[Requirement] | None = None
    npm_requirements: list[Requirement] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    metadata_: dict[str, Any] | None = None
    project_id: str | None = None


class ToolFields(msgspec.Struct, kw_only=True):
    """The fields of a tool that clients set. A field that is null or absent stays as it is."""

    description: str | None = None
    tags: list[str] | None = None
    source_code: str | None = None
    source_type: str | None = None
    json_schema: dict[str, Any] | None = None
    args_json_schema: dict[str, Any] | None = None
    return_char_limit: int | None = None
    pip_requirements: list[Requirement] | None = None
    npm_requirements: list[Requirement] | None = None
    default_requires_approval: bool | None = None
    enable_parallel_execution: bool | None = None
    metadata_: dict[str, Any] | None = None


class SearchTools(msgspec.Struct, kw_only=True):
    """What to search for among tools."""

    query: str | None = None
    search_mode: str = "hybrid"
    tool_types: list[str] | None = None
    tags: list[str] | None = None
    limit: int = 50


class ToolHit(msgspec.Struct, kw_only=True):
    """A tool that was found."""

    tool: Tool
    embedded_text: str | None = None
    fts_rank: int | None = None
    vector_rank: int | None = None
    combined_score: float = 0.0


class ToolSource(msgspec.Struct, kw_only=True):
    """Source code whose schema is generated."""

    code: str
    source_type: str | None = None


class RunSource(msgspec.Struct, kw_only=True):
    """Source code to run as a tool once."""

    source_code: str
    args: dict[str, Any]
    env_vars: dict[str, str] | None = None
    name: str | None = None
    source_type: str | None = None
    args_json_schema: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    pip_requirements: list[Requirement] | None = None
    npm_requirements: list[Requirement] | None = None


class ToolResult(msgspec.Struct, kw_only=True):
    """The result of a tool."""

    status: str
    func_return: Any = None
    agent_state: None = None
    stdout: list[str] | None = None
    stderr: list[str] | None = None
    sandbox_config_fingerprint: str | None = None


_SOURCES: Final = {pb.SOURCE_TYPE_PYTHON: "python", pb.SOURCE_TYPE_TYPESCRIPT: "typescript"}
BUILTIN_TYPES: Final = frozenset(TYPE_OF_BUILTIN.values())
"""Letta's names for the types of built-in tools. Each begins with "letta_"."""
TOOL_TYPES: Final = BUILTIN_TYPES | {"custom", "external_mcp"}
"""Letta's names for the types of tools."""
UNUSED_TYPES: Final = frozenset({"external_composio", "external_langchain"})
"""Letta's names for types that no tool has."""
_SOURCE_TYPES: Final = {name: kind for kind, name in _SOURCES.items()}


def tool_from_proto(tool: pb.Tool) -> Tool:
    builtin = tool.type == pb.TOOL_TYPE_BUILTIN
    schema = json_value(tool.json_schema) or {}
    return shown(
        Tool,
        tool,
        tool_type=tool_type(tool),
        description=present(tool, "description") or schema.get("description"),
        source_type=_SOURCES.get(tool.source_type, "python" if builtin else "json"),
        json_schema=schema or None,
        pip_requirements=_requirements(tool.pip_requirements),
        npm_requirements=_requirements(tool.npm_requirements),
        metadata_=json_value(tool.metadata) or {},
    )


def tool_type(tool: pb.Tool) -> str:
    """Returns Letta's name for the type of a tool."""
    if tool.type == pb.TOOL_TYPE_MCP:
        return "external_mcp"
    return TYPE_OF_BUILTIN.get(tool.name, OTHER_BUILTIN) if tool.type == pb.TOOL_TYPE_BUILTIN else "custom"


def _requirements(requirements: Iterable[pb.PackageRequirement]) -> list[Requirement] | None:
    return [shown(Requirement, item) for item in requirements] or None


def fields_to_proto(body: ToolFields, message: pb.Tool) -> list[str]:
    """Sets the fields that a body has; returns their paths.

    Raises:
        ValidationFailed: the type of the source is unknown.
    """
    paths = fill(message, body)
    if body.source_type:
        message.source_type = source_type_to_proto(body.source_type, "body", "source_type")
        paths.append("source_type")
    for name in ("pip_requirements", "npm_requirements"):
        requirements: list[Requirement] | None = getattr(body, name)
        if requirements is not None:
            getattr(message, name).extend(_packages(requirements))
            paths.append(name)
    return paths


def source_type_to_proto(name: str | None, *loc: str) -> pb.SourceType.ValueType:
    """Returns the type of source code; Python without a name. Raises ValidationFailed if the type is unknown."""
    if name is not None and name not in _SOURCE_TYPES:
        raise invalid_field("Input should be 'python' or 'typescript'", *loc)
    return _SOURCE_TYPES[name or "python"]


def trial_to_proto(body: RunSource, execution_id: str) -> execution_service_pb2.ExecuteToolRequest:
    """Returns the request that runs source code once. Raises ValidationFailed if the type of the source is unknown."""
    tool = execution_service_pb2.AdHocTool(
        source_code=body.source_code,
        source_type=source_type_to_proto(body.source_type, "body", "source_type"),
        pip_requirements=_packages(body.pip_requirements),
        npm_requirements=_packages(body.npm_requirements),
    )
    set_present(tool, name=body.name, args_json_schema=json_text(body.args_json_schema))
    return execution_service_pb2.ExecuteToolRequest(
        execution_id=execution_id,
        ad_hoc=tool,
        arguments=json_text(body.args) or "{}",
        environment=body.env_vars or {},
    )


def return_of_trial(response: execution_service_pb2.ExecuteToolResponse, started: datetime) -> dict[str, Any]:
    """Returns the message with the result of source code that ran once. Its id is that of no stored message."""
    status = "success" if response.status == execution_service_pb2.EXECUTION_STATUS_SUCCESS else "error"
    found = {
        "status": status,
        "tool_return": response.result,
        "stdout": [response.stdout] if response.stdout else None,
        "stderr": [response.stderr] if response.stderr else None,
        "tool_call_id": "null",
    }
    head = {"id": "null", "date": started, "message_type": "tool_return_message"}
    return head | found | {"tool_returns": [found | {"type": "tool"}]}


def _packages(requirements: list[Requirement] | None) -> list[pb.PackageRequirement]:
    return [pb.PackageRequirement(name=item.name, version=item.version) for item in requirements or ()]


operations = Operations()
_RUN_SECONDS: Final = 240.0
_TYPES: Final = {"custom": pb.TOOL_TYPE_CUSTOM, "external_mcp": pb.TOOL_TYPE_MCP}
"""The types of Letta's that are not built-in tools."""
_EVERY: Final = PageQuery(limit=100_000)


class ListTools(PageQuery, kw_only=True):
    """The query of a list of tools."""

    name: str | None = None
    names: list[str] | None = None
    tool_ids: list[str] | None = None
    search: str | None = None
    tool_types: list[str] | None = None
    exclude_tool_types: list[str] | None = None
    return_only_letta_tools: bool = False
    exclude_letta_tools: bool = False


@operations.post("/tools/")
async def create_tool(call: Call[NoQuery, ToolFields]) -> Tool:
    """Creates a tool from its source, whose last function gives the name."""
    request = rpc.CreateToolRequest(tool=_new(call.body))
    return tool_from_proto((await call.write(call.mesh.tools.CreateTool, request)).tool)


@operations.put("/tools/")
async def upsert_tool(call: Call[NoQuery, ToolFields]) -> Tool:
    """Creates a tool, or updates the one with the same name, which keeps its id."""
    request = rpc.UpsertToolRequest(tool=_new(call.body))
    return tool_from_proto((await call.write(call.mesh.tools.UpsertTool, request)).tool)


@operations.get("/tools/")
async def list_tools(call: Call[ListTools, None]) -> list[Tool]:
    """Lists tools, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order or "desc")
    types = _wanted(query)
    if _is_exact(types):
        request = rpc.ListToolsRequest(filter=_filter(query, types))
        rows = await list_page(call.mesh.tools.ListTools, request, "tools", page, default="desc") if types else []
    else:
        rows = cut(await _every(call, query, types), page, lambda tool: tool.id)
    return [tool_from_proto(tool) for tool in rows]


@operations.get("/tools/count")
async def count_tools(call: Call[ListTools, None]) -> int:
    """Counts tools."""
    types = _wanted(call.query)
    if not _is_exact(types):
        return len(await _every(call, call.query, types))
    request = rpc.CountToolsRequest(filter=_filter(call.query, types))
    return int((await read(call.mesh.tools.CountTools, request)).count) if types else 0


@operations.post("/tools/search")
async def search_tools(call: Call[NoQuery, SearchTools]) -> list[ToolHit]:
    """Searches tools by what they do, best first."""
    body = call.body
    if not 1 <= body.limit <= 100:
        raise invalid_field("Input should be between 1 and 100", "body", "limit")
    request = rpc.SearchToolsRequest(query=body.query or "", limit=body.limit, tags_any=body.tags or ())
    types = TOOL_TYPES & (_checked(body.tool_types, "body") or TOOL_TYPES)
    request.types.extend(_types(types))
    found = (await whole_answer(call.mesh.tools.SearchTools, request, seconds=READ_SECONDS)).hits if types else []
    hits = [hit for hit in found if tool_type(hit.tool) in types]
    return [
        ToolHit(
            tool=tool_from_proto(hit.tool),
            fts_rank=hit.text_rank if hit.HasField("text_rank") else None,
            vector_rank=hit.vector_rank if hit.HasField("vector_rank") else None,
            combined_score=hit.score,
        )
        for hit in hits
    ]


@operations.post("/tools/generate-schema")
async def generate_json_schema(call: Call[NoQuery, ToolSource]) -> dict[str, Any]:
    """Returns the schema of source code. Nothing is stored."""
    request = rpc.GenerateSchemaRequest(
        source_code=call.body.code, source_type=source_type_to_proto(call.body.source_type, "body", "source_type")
    )
    response = await read(call.mesh.tools.GenerateSchema, request)
    schema: dict[str, Any] = json_value(response.json_schema)
    return schema


@operations.post("/tools/run")
async def run_tool_from_source(call: Call[NoQuery, RunSource]) -> dict[str, Any]:
    """Runs source code as a tool once, and returns the message with its result. Nothing is stored."""
    started = datetime.now(UTC)
    response = await call.mesh.execution.ExecuteTool(trial_to_proto(call.body, call.request_id), timeout=_RUN_SECONDS)
    return return_of_trial(response, started)


@operations.post("/tools/add-base-tools")
async def add_base_tools(call: Call[NoQuery, None]) -> list[Tool]:
    """Returns the built-in tools, which every organization has."""
    request = rpc.ListToolsRequest(filter=rpc.ToolFilter(types=[pb.TOOL_TYPE_BUILTIN]))
    rows = await list_page(call.mesh.tools.ListTools, request, "tools", PageQuery(limit=1000), default="asc")
    return [tool_from_proto(row) for row in rows]


@operations.get("/tools/{tool_id}")
async def retrieve_tool(call: Call[NoQuery, None]) -> Tool:
    """Returns a tool."""
    return tool_from_proto((await read(call.mesh.tools.GetTool, rpc.GetToolRequest(tool_id=call.path["tool_id"]))).tool)


@operations.patch("/tools/{tool_id}")
async def modify_tool(call: Call[NoQuery, ToolFields]) -> Tool:
    """Updates a tool. A changed source generates the schema again."""
    tool = pb.Tool(id=call.path["tool_id"])
    request = rpc.UpdateToolRequest()
    request.update_mask.paths.extend(fields_to_proto(call.body, tool))
    request.tool.CopyFrom(tool)
    if request.update_mask.paths:
        await call.write(call.mesh.tools.UpdateTool, request)
    return tool_from_proto((await read(call.mesh.tools.GetTool, rpc.GetToolRequest(tool_id=tool.id))).tool)


@operations.delete("/tools/{tool_id}")
async def delete_tool(call: Call[NoQuery, None]) -> None:
    """Deletes a tool. A built-in tool is kept: on the Letta server, the next list restores it."""
    get = rpc.GetToolRequest(tool_id=call.path["tool_id"])
    if (await read(call.mesh.tools.GetTool, get)).tool.type == pb.TOOL_TYPE_BUILTIN:
        return
    await call.write(call.mesh.tools.DeleteTool, rpc.DeleteToolRequest(tool_id=call.path["tool_id"]))


def _new(body: ToolFields) -> pb.Tool:
    if not body.source_code:
        raise invalid_field("Field required", "body", "source_code")
    tool = pb.Tool(type=pb.TOOL_TYPE_CUSTOM, source_type=pb.SOURCE_TYPE_PYTHON)
    fields_to_proto(body, tool)
    return tool


async def _every(call: Call[ListTools, None], query: ListTools, types: frozenset[str]) -> list[pb.Tool]:
    """Returns all tools of types that only some built-in tools have, oldest first."""
    request = rpc.ListToolsRequest(filter=_filter(query, types))
    rows = await list_page(call.mesh.tools.ListTools, request, "tools", _EVERY, default="asc")
    return [tool for tool in rows if tool_type(tool) in types]


def _filter(query: ListTools, types: frozenset[str]) -> rpc.ToolFilter:
    found = rpc.ToolFilter(
        tool_ids=_split(query.tool_ids),
        names=[*(query.names or ()), *([query.name] if query.name else ())],
        types=_types(types),
    )
    set_present(found, text_search=query.search)
    return found


def _wanted(query: ListTools) -> frozenset[str]:
    """Returns the types that a query asks for. Raises ValidationFailed if one is unknown."""
    types = TOOL_TYPES & (_checked(query.tool_types, "query") or TOOL_TYPES)
    types -= _checked(query.exclude_tool_types, "query", "exclude_tool_types")
    if query.return_only_letta_tools:
        types &= BUILTIN_TYPES
    return types - BUILTIN_TYPES if query.exclude_letta_tools else types


def _is_exact(types: frozenset[str]) -> bool:
    """Returns whether the types are types of the contract: those with all built-in tools or none."""
    return not types & BUILTIN_TYPES or types >= BUILTIN_TYPES


def _checked(names: list[str] | None, place: str, field: str = "tool_types") -> frozenset[str]:
    """Returns the types of a parameter, which may be separated by commas. Raises ValidationFailed if one is unknown."""
    types = frozenset(_split(names))
    if not types <= TOOL_TYPES | UNUSED_TYPES:
        raise invalid_field(f"Input should be one of {', '.join(sorted(TOOL_TYPES | UNUSED_TYPES))}", place, field)
    return types


def _split(values: list[str] | None) -> list[str]:
    return [part for value in values or () for text in value.split(",") if (part := text.strip())]


def _types(types: frozenset[str]) -> list[pb.ToolType.ValueType]:
    """Returns the types of the contract; several of Letta's are built-in tools. None of them if all are wanted."""
    if types == TOOL_TYPES:
        return []
    found = [_TYPES[name] for name in sorted(types & _TYPES.keys())]
    return [*found, pb.TOOL_TYPE_BUILTIN] if types & BUILTIN_TYPES else found
