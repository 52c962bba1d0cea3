"""The RPCs of ToolService, on each engine."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import tools_pb2
from mnemesh.tools.v1 import tools_service_pb2 as pb
from mnemesh.types.v1 import paging_pb2
from mnemesh_testkit.errors import catch_refusal

UNKNOWN: Any = 9
ROLL = '''def roll(sides: int) -> int:
    """Rolls a die.

    Args:
        sides: How many sides.
    """
    return 4
'''


def _source(name: str, text: str = "Does it.") -> str:
    return f'def {name}():\n    """{text}"""\n    return 1\n'


_ARGS, _CODE = "tool.args_json_schema", "tool.source_code"


def _schema_with(properties: dict[str, Any]) -> str:
    return json.dumps({"name": "f", "parameters": {"type": "object", "properties": properties}})


def _nested(depth: int) -> str:
    return '{"type": "object", "properties": ' + '{"a": ' * depth + "{}" + "}" * depth + "}"


async def _create(stubs: Any, source: str = ROLL, request_id: str = "", **fields: Any) -> tools_pb2.Tool:
    tool = tools_pb2.Tool(source_code=source, **fields)
    answer: pb.CreateToolResponse = await stubs.tools.CreateTool(pb.CreateToolRequest(tool=tool, request_id=request_id))
    return answer.tool


def _own(filter_: pb.ToolFilter | None = None) -> pb.ToolFilter:
    """Returns the filter without built-in tools."""
    own = pb.ToolFilter(exclude_types=[tools_pb2.TOOL_TYPE_BUILTIN])
    own.MergeFrom(filter_ or pb.ToolFilter())
    return own


async def _names(stubs: Any, filter_: pb.ToolFilter | None = None) -> list[str]:
    answer = await stubs.tools.ListTools(
        pb.ListToolsRequest(order_by=pb.TOOL_ORDER_BY_NAME, order=paging_pb2.SORT_ORDER_ASCENDING, filter=_own(filter_))
    )
    return [tool.name for tool in answer.tools]


async def test_created_tool_is_returned_with_its_name_schema_and_defaults(stubs: Any) -> None:
    written = tools_pb2.Tool(
        source_code=ROLL,
        description="For games",
        return_char_limit=100,
        default_requires_approval=False,
        enable_parallel_execution=True,
        idempotent=True,
        tags=["b", "a", "b"],
        metadata='{"k": [1]}',
    )
    written.provenance.project_id = "p"
    created = (await stubs.tools.CreateTool(pb.CreateToolRequest(tool=written))).tool
    assert created.id.startswith("tool-")
    assert (created.name, created.type, created.source_type) == (
        "roll",
        tools_pb2.TOOL_TYPE_CUSTOM,
        tools_pb2.SOURCE_TYPE_PYTHON,
    )
    assert json.loads(created.json_schema) == {
        "name": "roll",
        "description": "Rolls a die.",
        "parameters": {
            "type": "object",
            "properties": {"sides": {"type": "integer", "description": "How many sides."}},
            "required": ["sides"],
        },
    }
    for field in written.DESCRIPTOR.fields_by_name:
        if field in ("default_requires_approval", "metadata", "description", "idempotent"):
            assert getattr(created, field) == getattr(written, field), field
    assert created.HasField("default_requires_approval")
    assert not created.HasField("args_json_schema")
    assert list(created.tags) == ["b", "a"]
    assert (created.return_char_limit, created.timeout_seconds, created.revision) == (100, 180, 1)
    assert created.provenance.project_id == "p"
    assert created.provenance.created_by_id.startswith("user-")
    assert created.create_time == created.update_time
    for key in ({"tool_id": created.id}, {"name": "roll"}):
        assert (await stubs.tools.GetTool(pb.GetToolRequest(**key))).tool == created


async def test_names_are_unique_and_upsert_keeps_the_id(stubs: Any) -> None:
    """Upsert also keeps the fields that the request does not set."""
    created = await _create(stubs, description="first", tags=["x"])
    error = await catch_refusal(_create(stubs))
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")
    changed = ROLL.replace("Rolls a die.", "Rolls it.")
    request = pb.UpsertToolRequest(tool=tools_pb2.Tool(source_code=changed))
    answer = await stubs.tools.UpsertTool(request)
    assert not answer.created
    assert (answer.tool.id, answer.tool.description, list(answer.tool.tags)) == (created.id, "first", ["x"])
    assert json.loads(answer.tool.json_schema)["description"] == "Rolls it."
    assert answer.tool.revision == 2
    assert (await stubs.tools.UpsertTool(request)).tool.revision == 2
    new = await stubs.tools.UpsertTool(pb.UpsertToolRequest(tool=tools_pb2.Tool(source_code=_source("other"))))
    assert new.created


async def test_repeated_requests_take_effect_once(stubs: Any) -> None:
    """A repeat returns the first result; the same request id with other content is refused."""
    created = await _create(stubs, request_id="r1")
    assert await _create(stubs, request_id="r1") == created
    error = await catch_refusal(_create(stubs, source=_source("other"), request_id="r1"))
    assert (error.reason, error.field) == ("REQUEST_ID_REUSED", "request_id")
    upsert = pb.UpsertToolRequest(request_id="r2", tool=tools_pb2.Tool(source_code=_source("other")))
    first, again = await stubs.tools.UpsertTool(upsert), await stubs.tools.UpsertTool(upsert)
    assert first == again
    assert again.created
    change = tools_pb2.Tool(id=created.id, tags=["t"])
    update = pb.UpdateToolRequest(request_id="r3", tool=change, update_mask=FieldMask(paths=["tags"]))
    assert (await stubs.tools.UpdateTool(update)).tool == (await stubs.tools.UpdateTool(update)).tool
    assert await _names(stubs) == ["other", "roll"]


async def test_concurrent_upserts_create_one_tool(stubs: Any) -> None:
    request = pb.UpsertToolRequest(tool=tools_pb2.Tool(source_code=ROLL))
    answers = await asyncio.gather(*(stubs.tools.UpsertTool(request) for _ in range(8)))
    assert len({answer.tool.id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1


async def test_update_writes_the_fields_of_the_mask(stubs: Any) -> None:
    """A changed source changes the name and the schema. A field in the mask that is not set is cleared."""
    created = await _create(stubs, description="first", tags=["x"])
    change = tools_pb2.Tool(id=created.id, source_code=_source("toss"), tags=["ignored"])
    mask = FieldMask(paths=["source_code", "description"])
    tool = (await stubs.tools.UpdateTool(pb.UpdateToolRequest(tool=change, update_mask=mask))).tool
    assert (tool.id, tool.name, list(tool.tags)) == (created.id, "toss", ["x"])
    assert not tool.HasField("description")
    assert json.loads(tool.json_schema)["parameters"]["properties"] == {}
    assert tool.update_time.ToDatetime() >= created.update_time.ToDatetime()
    await _create(stubs)
    change = tools_pb2.Tool(id=created.id, source_code=ROLL)
    mask = FieldMask(paths=["source_code"])
    error = await catch_refusal(stubs.tools.UpdateTool(pb.UpdateToolRequest(tool=change, update_mask=mask)))
    assert error.reason == "ALREADY_EXISTS"


async def test_schemas_of_the_client_are_used_unchanged(stubs: Any) -> None:
    """A complete schema or one of the arguments; neither needs a docstring."""
    parameters = {"type": "object", "properties": {"a": {"type": "string", "x-own": 1}}, "required": ["a"]}
    bare = "def f(a):\n    return a\n"
    tool = await _create(stubs, bare, args_json_schema=json.dumps(parameters), description="Says it.")
    assert json.loads(tool.json_schema) == {"name": "f", "description": "Says it.", "parameters": parameters}
    whole = {"name": "g", "description": "", "parameters": parameters}
    tool = await _create(stubs, bare.replace("f(", "g("), json_schema=json.dumps(whole))
    assert json.loads(tool.json_schema) == whole
    error = await catch_refusal(_create(stubs, _source("h"), json_schema=json.dumps(whole)))
    assert (error.reason, error.field) == ("INVALID_ARGUMENT", "tool.json_schema")


async def test_delete_can_be_repeated(stubs: Any) -> None:
    """The name is free afterwards."""
    created = await _create(stubs, tags=["x"])
    for _ in range(2):
        await stubs.tools.DeleteTool(pb.DeleteToolRequest(tool_id=created.id))
    error = await catch_refusal(stubs.tools.GetTool(pb.GetToolRequest(tool_id=created.id)))
    assert (error.code, error.metadata["resource_id"]) == (grpc.StatusCode.NOT_FOUND, created.id)
    assert (await _create(stubs)).id != created.id


async def test_lists_filter_sort_and_page_and_counts_agree(stubs: Any) -> None:
    for name, tags in (("alpha", ["a"]), ("beta", ["a", "b"]), ("gamma", [])):
        await _create(stubs, _source(name, text="Öffnet 50%_ der Türen." if name == "gamma" else "Does."), tags=tags)
    client = tools_pb2.Tool(
        type=tools_pb2.TOOL_TYPE_CLIENT,
        json_schema='{"name": "local", "description": "Here.", "parameters": {"type": "object"}}',
    )
    await stubs.tools.CreateTool(pb.CreateToolRequest(tool=client))
    filters: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["alpha", "beta", "gamma", "local"]),
        ({"names": ["beta", "local", "none"]}, ["beta", "local"]),
        ({"types": [tools_pb2.TOOL_TYPE_CLIENT]}, ["local"]),
        ({"exclude_types": [tools_pb2.TOOL_TYPE_CLIENT]}, ["alpha", "beta", "gamma"]),
        ({"tags_any": ["b", "z"]}, ["beta"]),
        ({"tags_any": ["a"], "text_search": "ALPH"}, ["alpha"]),
        ({"text_search": "öffnet 50%_"}, ["gamma"]),
        ({"text_search": "e%a"}, []),
        ({"valid_schema_only": True}, ["alpha", "beta", "gamma", "local"]),
    ]
    for conditions, expected in filters:
        filter_ = pb.ToolFilter(**conditions)
        assert await _names(stubs, filter_) == expected, conditions
        assert (await stubs.tools.CountTools(pb.CountToolsRequest(filter=_own(filter_)))).count == len(expected)
    newest = (await stubs.tools.ListTools(pb.ListToolsRequest(page_size=3, filter=_own()))).tools
    assert [tool.name for tool in newest] == ["local", "gamma", "beta"]
    request = pb.ListToolsRequest(
        page_size=3, order_by=pb.TOOL_ORDER_BY_NAME, order=paging_pb2.SORT_ORDER_ASCENDING, filter=_own()
    )
    first = await stubs.tools.ListTools(request)
    request.page_token = first.next_page_token
    second = await stubs.tools.ListTools(request)
    assert [tool.name for tool in (*first.tools, *second.tools)] == ["alpha", "beta", "gamma", "local"]
    assert second.next_page_token == ""
    request.filter.names.append("alpha")
    assert (await catch_refusal(stubs.tools.ListTools(request))).reason == "PAGE_TOKEN_INVALID"
    batch = pb.BatchGetToolsRequest(names=["gamma", "unknown", "alpha"], tool_ids=[newest[0].id])
    assert [tool.name for tool in (await stubs.tools.BatchGetTools(batch)).tools] == ["local", "gamma", "alpha"]


async def test_ensure_base_tools_restores_deleted_tools(stubs: Any) -> None:
    schema = {"name": "send_message", "description": "Says.", "parameters": {"type": "object", "properties": {}}}
    builtin = tools_pb2.Tool(type=tools_pb2.TOOL_TYPE_BUILTIN, json_schema=json.dumps(schema), tags=["base"])
    request = pb.EnsureBaseToolsRequest(tools=[builtin])
    first = (await stubs.tools.EnsureBaseTools(request)).tools[0]
    assert (await stubs.tools.EnsureBaseTools(request)).tools[0] == first
    await stubs.tools.DeleteTool(pb.DeleteToolRequest(tool_id=first.id))
    restored = (await stubs.tools.EnsureBaseTools(request)).tools[0]
    assert (restored.name, restored.type) == ("send_message", tools_pb2.TOOL_TYPE_BUILTIN)
    error = await catch_refusal(stubs.tools.CreateTool(pb.CreateToolRequest(tool=builtin)))
    assert error.field == "tool.type"


async def test_generate_schema_stores_nothing(embedded: Any) -> None:
    answer = await embedded.tools.GenerateSchema(pb.GenerateSchemaRequest(source_code=ROLL))
    assert json.loads(answer.json_schema)["name"] == "roll"
    assert await _names(embedded) == []
    bad = pb.GenerateSchemaRequest(source_code=ROLL.replace("sides: How many sides.", "other: What."))
    error = await catch_refusal(embedded.tools.GenerateSchema(bad))
    assert error.message == "Parameter 'sides' in function 'roll' lacks a description in the docstring"
    assert (error.reason, error.metadata) == ("TOOL_SOURCE_INVALID", {"field": "source_code", "parameter": "sides"})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "tool.source_code"),
        ({"source_code": "def f(:"}, "tool.source_code"),
        ({"source_code": _source("f"), "name": "g"}, "tool.name"),
        ({"source_code": _source("f"), "metadata": "[]"}, "tool.metadata"),
        ({"source_code": _source("f"), "metadata": "{"}, "tool.metadata"),
        ({"source_code": _source("f"), "description": "a\0b"}, "tool.description"),
        ({"source_code": _source("f"), "tags": [""]}, "tool.tags"),
        ({"source_code": _source("f"), "tags": [str(n) for n in range(101)]}, "tool.tags"),
        ({"source_code": _source("f"), "return_char_limit": -1}, "tool.return_char_limit"),
        ({"source_code": _source("f"), "timeout_seconds": 3601}, "tool.timeout_seconds"),
        ({"source_code": _source("f"), "args_json_schema": '{"type": "array"}'}, "tool.args_json_schema"),
        ({"source_code": _source("f"), "type": 77}, "tool.type"),
        ({"source_code": _source("f"), "pip_requirements": [{"name": "a; rm"}]}, "tool.pip_requirements"),
        ({"source_code": _source("f"), "json_schema": _schema_with({"p": 5})}, "tool.json_schema"),
        ({"source_code": _source("f"), "json_schema": _schema_with({"p": {"type": {}}})}, "tool.json_schema"),
        ({"source_code": _source("f"), "args_json_schema": _nested(70)}, "tool.args_json_schema"),
        ({"source_code": _source("f"), "args_json_schema": '{"type": "object", "x": ' + "9" * 5000 + "}"}, _ARGS),
        ({"source_code": 'def f(p: Annotated[()]):\n    """F.\n\n    Args:\n        p: x\n    """'}, _CODE),
        ({"type": tools_pb2.TOOL_TYPE_CLIENT}, "tool.json_schema"),
        ({"type": tools_pb2.TOOL_TYPE_CLIENT, "json_schema": '{"name": "a b"}'}, "tool.json_schema"),
        ({"type": tools_pb2.TOOL_TYPE_MCP, "json_schema": '{"name": "a"}'}, "tool.mcp_server_id"),
    ],
)
async def test_invalid_definitions_are_refused_with_the_field(
    embedded: Any, fields: dict[str, Any], field: str
) -> None:
    error = await catch_refusal(embedded.tools.CreateTool(pb.CreateToolRequest(tool=tools_pb2.Tool(**fields))))
    assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
    assert await _names(embedded) == []


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"npm_requirements": [{"name": "@a/b"}]}, "tool.npm_requirements", "INVALID_ARGUMENT"),
        ({"allow_network": True}, "tool.allow_network", "SANDBOX_UNAVAILABLE"),
    ],
)
async def test_tool_that_cannot_be_executed_is_refused_at_its_creation(
    embedded: Any, fields: dict[str, Any], field: str, reason: str
) -> None:
    """A tool that a client executes may need them."""
    tool = tools_pb2.Tool(source_code=ROLL, **fields)
    error = await catch_refusal(embedded.tools.CreateTool(pb.CreateToolRequest(tool=tool)))
    assert (error.reason, error.field) == (reason, field)
    created = await _create(embedded)
    tool.id = created.id
    mask = FieldMask(paths=[field.removeprefix("tool.")])
    error = await catch_refusal(embedded.tools.UpdateTool(pb.UpdateToolRequest(tool=tool, update_mask=mask)))
    assert (error.reason, error.field) == (reason, field)
    local = tools_pb2.Tool(type=tools_pb2.TOOL_TYPE_CLIENT, json_schema='{"name": "here"}', **fields)
    await embedded.tools.CreateTool(pb.CreateToolRequest(tool=local))


async def test_schema_of_the_arguments_keeps_the_description_of_the_docstring(embedded: Any) -> None:
    """Also if the docstring does not describe the parameters."""
    source = 'def f(a):\n    """Does it well."""\n'
    tool = await _create(embedded, source, args_json_schema='{"type": "object", "properties": {"a": {}}}')
    assert json.loads(tool.json_schema)["description"] == "Does it well."


async def test_invalid_requests_are_refused_with_the_field(embedded: Any) -> None:
    tools, created = embedded.tools, await _create(embedded)
    mask = FieldMask(paths=["revision"])
    malformed = pb.UpdateToolRequest(tool=tools_pb2.Tool(id="x"), update_mask=FieldMask(paths=["tags"]))
    name = pb.UpdateToolRequest(tool=tools_pb2.Tool(id=created.id, name="x"), update_mask=FieldMask(paths=["name"]))
    for call, field in (
        (tools.GetTool(pb.GetToolRequest()), "tool_id"),
        (tools.GetTool(pb.GetToolRequest(tool_id="x")), "tool_id"),
        (tools.DeleteTool(pb.DeleteToolRequest(tool_id="block-1")), "tool_id"),
        (tools.UpdateTool(malformed), "tool.id"),
        (tools.UpdateTool(pb.UpdateToolRequest(tool=created)), "update_mask"),
        (tools.UpdateTool(pb.UpdateToolRequest(tool=created, update_mask=mask)), "update_mask"),
        (tools.UpdateTool(name), "tool.name"),
        (tools.ListTools(pb.ListToolsRequest(order_by=UNKNOWN)), "order_by"),
        (tools.ListTools(pb.ListToolsRequest(filter=pb.ToolFilter(types=[UNKNOWN]))), "filter.types"),
        (tools.BatchGetTools(pb.BatchGetToolsRequest(names=["a"] * 600, tool_ids=["a"] * 600)), "tool_ids"),
    ):
        error = await catch_refusal(call)
        assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
