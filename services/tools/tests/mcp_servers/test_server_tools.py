"""The tools of an MCP server: reading, running and refreshing them, their names and their schemas."""

import asyncio
import json
from itertools import repeat
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.mcp_server import ECHO, PNG, running

from ..conftest import Stubs
from .remote_calls import HTTP, created, run_tool, server_at, tools_by_name
from .scripted import scripted

SECRET = "canary-token-0123456789"


@pytest.mark.parametrize("kind", [HTTP, "sse"])
async def test_tools_are_read_and_run(embedded: Stubs, kind: str) -> None:
    tools = {name: {"type": "object"} for name in ("fail", "long", "picture")} | {"echo": ECHO}
    async with running(kind, tools=tools, token=SECRET) as remote:
        server = await created(embedded, server_at(remote, kind, token=SECRET))
        assert (server.status, server.tool_count) == (pb.MCP_SERVER_STATUS_REACHABLE, 4), server.status_message
        listed = await tools_by_name(embedded, server)
        assert listed["echo"].schema_health.status == pb.MCP_SCHEMA_STATUS_STRICT
        assert listed["fail"].schema_health.status == pb.MCP_SCHEMA_STATUS_NON_STRICT
        attached = await embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=listed["echo"].tool_id))
        assert (attached.tool.type, attached.tool.mcp_tool_name) == (tools_pb2.TOOL_TYPE_MCP, "echo")

        caller = rpc.McpCaller(agent_id="agent-1")
        answer = await run_tool(embedded, server, "echo", '{"text": 5}', caller=caller)
        assert (answer.status, answer.content[0].text.text) == (
            message_pb2.TOOL_RETURN_STATUS_SUCCESS,
            '{"text": "5"}',
        )
        assert remote.headers[-1].get("x-agent-id") == "agent-1"
        failed = await run_tool(embedded, server, "fail")
        assert (failed.status, failed.content[0].text.text) == (message_pb2.TOOL_RETURN_STATUS_ERROR, "It failed.")
        long = await run_tool(embedded, server, "long")
        assert len(long.content[0].text.text) == 50_000
        assert "truncated from 200000 to 50000 characters" in long.content[1].text.text
        picture = await run_tool(embedded, server, "picture")
        assert (picture.content[1].image.inline.data, picture.structured_content) == (PNG, '{"width": 1}')
        assert (await catch_refusal(run_tool(embedded, server, "echo", "{}"))).reason == "TOOL_ARGUMENTS_INVALID"
        assert (await catch_refusal(run_tool(embedded, server, "missing"))).reason == "NOT_FOUND"


async def test_a_changed_server_is_refreshed_under_the_same_ids(embedded: Stubs) -> None:
    async with running(tools={"echo": ECHO, "gone": ECHO}) as remote:
        server = await created(embedded, server_at(remote))
        before = await tools_by_name(embedded, server)
        remote.tools = {"echo": {"type": "object"}, "new": ECHO}
        answer = await embedded.mcp.RefreshMcpServer(
            rpc.RefreshMcpServerRequest(mcp_server_id=server.id, request_id="once")
        )
        changed = [[tool.name for tool in group] for group in (answer.added, answer.updated, answer.removed)]
        assert changed == [["new"], ["echo"], ["gone"]]
        assert answer.updated[0].tool_id == before["echo"].tool_id
        tool_id = before["gone"].tool_id
        missing = embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool_id))
        assert (await catch_refusal(missing)).reason == "NOT_FOUND"
        again = await embedded.mcp.RefreshMcpServer(
            rpc.RefreshMcpServerRequest(mcp_server_id=server.id, request_id="once")
        )
        assert again == answer
        (entry,) = await embedded.changes("RefreshMcpServer")
        assert (entry.request_id, entry.resource_ids[0]) == ("once", server.id)


async def test_a_refresh_keeps_the_owner_s_settings_of_a_tool(embedded: Stubs) -> None:
    async with running() as remote:
        server = await created(embedded, server_at(remote))
        tool_id = (await tools_by_name(embedded, server))["echo"].tool_id
        change = tools_pb2.Tool(id=tool_id, default_requires_approval=True)
        await embedded.tools.UpdateTool(
            tools_service_pb2.UpdateToolRequest(tool=change, update_mask=FieldMask(paths=["default_requires_approval"]))
        )
        remote.tools["echo"] = {"type": "object", "properties": {"other": {"type": "integer"}}}
        await embedded.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id))
        stored = (await embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool_id))).tool
        assert stored.default_requires_approval
        assert "other" in stored.json_schema


async def test_names_do_not_collide(embedded: Stubs) -> None:
    """A tool that has the name of a built-in tool, or of another server's tool, gets one with its server's name."""
    async with running(tools={"echo": ECHO, "send_message": ECHO, "read file": ECHO}) as remote:
        first = await created(embedded, server_at(remote, name="first"))
        second = await created(embedded, server_at(remote, name="second"))
        found = [json.loads(tool.json_schema)["name"] for tool in (await tools_by_name(embedded, first)).values()]
        assert found == ["echo", "read_file", "first_send_message"]
        found = [json.loads(tool.json_schema)["name"] for tool in (await tools_by_name(embedded, second)).values()]
        assert found == ["second_echo", "second_read_file", "second_send_message"]


async def test_schemas_that_models_cannot_use_are_not_offered(embedded: Stubs) -> None:
    large = {"type": "object", "description": "x" * 1_048_576}
    outside = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    tools = {"echo": ECHO, "large": large, "outside": outside}
    async with running(tools=tools) as remote:
        server = await created(embedded, server_at(remote))
        assert server.tool_count == 3, server.status_message
        invalid = await tools_by_name(embedded, server, schema_statuses=[pb.MCP_SCHEMA_STATUS_INVALID])
        assert set(invalid) == {"large", "outside"}
        assert "100,000 characters" in invalid["large"].schema_health.reasons[0]
        assert "https://example.com/a.json" in invalid["outside"].schema_health.reasons[0]
        assert not invalid["outside"].HasField("json_schema")
        filter_ = tools_service_pb2.ToolFilter(mcp_server_id=server.id)
        offered = await embedded.tools.ListTools(tools_service_pb2.ListToolsRequest(filter=filter_))
        assert [tool.name for tool in offered.tools] == ["echo"]


BAD_TOOLS: list[Any] = [
    {"name": "null", "inputSchema": None},
    {"name": "missing"},
    {"name": "true", "inputSchema": True},
    {"name": "untyped", "inputSchema": {"properties": {"a": None, "b": {"type": "string", "enum": None}}}},
    {"name": "nullable", "inputSchema": {"type": ["object", "null"], "required": None, "properties": None}},
    {"name": "extra", "inputSchema": {"type": "object", "required": ["unknown"]}},
    {"name": "texts", "inputSchema": {"type": "object"}, "description": 5, "annotations": "x", "outputSchema": []},
    {"name": "list", "inputSchema": []},
    {"name": "false", "inputSchema": False},
    {"name": "text", "inputSchema": "object"},
    {"name": "array", "inputSchema": {"type": "array"}},
    {"name": "kind", "inputSchema": {"type": "object", "properties": {"a": {"type": "strng"}}}},
    {"name": "properties", "inputSchema": {"type": "object", "properties": ["a"]}},
    {"inputSchema": {"type": "object"}},
    {"name": 5, "inputSchema": {"type": "object"}},
    {"name": "", "inputSchema": {"type": "object"}},
    {"name": "x" * 201, "inputSchema": {"type": "object"}},
    {"name": "a\nb", "inputSchema": {"type": "object"}},
    {"name": "echo", "inputSchema": {"type": "object"}},
    "no tool",
    None,
]


async def test_a_bad_tool_costs_only_itself_and_is_named(embedded: Stubs) -> None:
    good = {"name": "echo", "inputSchema": ECHO}
    async with scripted(tools=[good, *BAD_TOOLS]) as remote:
        server = await created(embedded, server_at(remote))
        assert server.status == pb.MCP_SERVER_STATUS_REACHABLE, server.status_message
        filter_ = tools_service_pb2.ToolFilter(mcp_server_id=server.id)
        offered = await embedded.tools.ListTools(tools_service_pb2.ListToolsRequest(filter=filter_))
        usable = {"echo", "null", "missing", "true", "untyped", "nullable", "extra", "texts"}
        assert {tool.name for tool in offered.tools} == usable
        for tool in offered.tools:
            assert json.loads(tool.json_schema)["parameters"]["type"] == "object"
        assert "14 of 22 tools" in server.status_message
        for part in ("list (", "false (", "text (", "array (", "kind (", "and 4 more"):
            assert part in server.status_message, server.status_message
        test = rpc.TestMcpServerRequest(mcp_server_id=server.id)
        assert (await embedded.mcp.TestMcpServer(test)).status_message == server.status_message
        assert (await run_tool(embedded, server, "null", '{"any": 1}')).content[0].text.text == '{"any": 1}'
        remote.tools = [good]
        refreshed = await embedded.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id))
        assert not refreshed.mcp_server.status_message


@pytest.mark.parametrize("tools", [{"a": 1}, None, "x"])
async def test_a_list_that_is_not_one_is_a_clear_status(embedded: Stubs, tools: Any) -> None:
    async with scripted(tools=tools) as remote:
        server = await created(embedded, server_at(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "list of tools is not valid" in server.status_message


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "widget", "x": 1}]}, ["a", "[Content of type widget"]),
        ({"content": [{"type": "text", "text": 5}, {"type": "image"}]}, ["5", "[Content of type image"]),
        ({"content": [{"type": "text", "text": "a", "annotations": {"priority": 7}}]}, ["a"]),
        ({"content": "a", "isError": None}, ["a"]),
        ({"content": None, "structuredContent": {"a": 1}}, []),
        ({"structuredContent": {"a": 1}}, []),
        ({"content": [], "structuredContent": [1]}, ["[1]"]),
        ({"content": ["a", None], "_meta": 5}, ["a", "null"]),
    ],
)
async def test_a_bad_part_of_a_result_costs_only_itself(
    embedded: Stubs, result: dict[str, Any], texts: list[str]
) -> None:
    tool = {"name": "echo", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "required": ["b"]}}
    async with scripted(tools=[tool], result=result) as remote:
        server = await created(embedded, server_at(remote))
        answer = await run_tool(embedded, server, "echo")
        assert answer.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
        found = [part.text.text for part in answer.content]
        assert len(found) == len(texts)
        assert all(part.startswith(text) for part, text in zip(found, texts, strict=True)), found


async def test_the_name_of_a_tool_is_kept_and_that_of_its_server_is_shortened(embedded: Stubs) -> None:
    async with running(tools={"send_message": ECHO}) as remote:
        server = await created(
            embedded, server_at(remote, name="the tickets and issues of our support team (production)")
        )
        (tool,) = (await tools_by_name(embedded, server)).values()
        name = json.loads(tool.json_schema)["name"]
        assert name == "the_tickets_and_issues_of_our_suppo_send_message"


async def test_a_tool_keeps_its_settings_while_its_schema_is_not_usable(stubs: Stubs) -> None:
    unusable = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    async with running() as remote:
        server = await created(stubs, server_at(remote))
        tool_id = (await tools_by_name(stubs, server))["echo"].tool_id
        mine = tools_pb2.Tool(id=tool_id, default_requires_approval=True, return_char_limit=77, timeout_seconds=5)
        mask = FieldMask(paths=["default_requires_approval", "return_char_limit", "timeout_seconds"])
        await stubs.tools.UpdateTool(tools_service_pb2.UpdateToolRequest(tool=mine, update_mask=mask))
        request, refresh = tools_service_pb2.GetToolRequest(tool_id=tool_id), rpc.RefreshMcpServerRequest
        for _ in range(2):
            remote.tools = {"echo": {**unusable, "description": f"{_}"}}
            await stubs.mcp.RefreshMcpServer(refresh(mcp_server_id=server.id))
            assert (await catch_refusal(stubs.tools.GetTool(request))).reason == "NOT_FOUND"
        remote.tools = {"echo": {"type": "object", "properties": {"number": {"type": "integer"}}}}
        await stubs.mcp.RefreshMcpServer(refresh(mcp_server_id=server.id))
        found = (await stubs.tools.GetTool(request)).tool
        assert (found.default_requires_approval, found.return_char_limit, found.timeout_seconds) == (True, 77, 5)
        assert "number" in found.json_schema
        assert "example.com" not in found.json_schema


async def test_a_server_with_too_many_schemas_is_refused(embedded: Stubs) -> None:
    schema = {"type": "object", "description": "x" * 90_000}
    async with running(tools={f"tool_{number}": schema for number in range(45)}) as remote:
        server = await created(embedded, server_at(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "4,000,000 characters" in server.status_message


async def test_a_list_that_repeats_its_pages_is_refused(embedded: Stubs) -> None:
    async with running(cursors=repeat("same")) as remote:
        server = await created(embedded, server_at(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "repeats the pages" in server.status_message
        assert server.tool_count == 0
        remote.cursors = iter(["second"])
        request = rpc.RefreshMcpServerRequest(mcp_server_id=server.id)
        assert (await embedded.mcp.RefreshMcpServer(request)).mcp_server.tool_count == 1


async def test_a_repeated_run_returns_the_first_result(embedded: Stubs) -> None:
    async with running() as remote:
        server = await created(embedded, server_at(remote))
        both = [run_tool(embedded, server, "echo", '{"text": "a"}', request_id="one") for _ in range(2)]
        first, second = await asyncio.gather(*both)
        third = await run_tool(embedded, server, "echo", '{"text": "a"}', request_id="one")
        assert first == second == third
        assert len(remote.calls) == 1
        await run_tool(embedded, server, "echo", '{"text": "a"}')
        runs = await embedded.changes("RunMcpServerTool")
        assert [(entry.request_id, entry.resource_ids[0]) for entry in runs] == [("one", server.id), ("", server.id)]
        other = run_tool(embedded, server, "echo", '{"text": "b"}', request_id="one")
        assert (await catch_refusal(other)).reason == "REQUEST_ID_REUSED"
