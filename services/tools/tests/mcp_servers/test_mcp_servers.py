"""McpServerService against servers of the official SDK."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable
from itertools import repeat
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.tools.v1 import tools_pb2, tools_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.auth import mint_token
from mnemesh_kit.errors import MnemeshError, from_rpc_error
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import Principal
from mnemesh_testkit.fakes.mcp_server import ECHO, PNG, Remote, running
from mnemesh_testkit.timeouts import growing, scaled
from mnemesh_tools.config import Config
from mnemesh_tools.mcp_clients.contracts import McpLimits

from ..conftest import Stubs, serve

SECRET = "canary-token-0123456789"
KEY = "k" * 32
HTTP = "streamable_http"


async def _refused(call: Awaitable[Any]) -> MnemeshError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


def _server(remote: Remote, kind: str = HTTP, *, name: str = "remote", **settings: Any) -> pb.McpServer:
    headers = [pb.McpSecret(name=key, value=value) for key, value in settings.pop("headers", {}).items()]
    token = settings.pop("token", None)
    auth = None if token is None else pb.HttpAuth(token=pb.McpSecret(value=token))
    if kind == "sse":
        return pb.McpServer(name=name, sse=pb.SseTransport(url=remote.url, auth=auth, headers=headers))
    transport = pb.StreamableHttpTransport(url=remote.url, auth=auth, headers=headers)
    return pb.McpServer(name=name, streamable_http=transport)


async def _created(stubs: Stubs, server: pb.McpServer, **fields: Any) -> pb.McpServer:
    answer = await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=server, **fields))
    return answer.mcp_server


async def _run(stubs: Stubs, server: pb.McpServer, tool: str, arguments: str = "", **fields: Any) -> Any:
    seconds = fields.pop("seconds", None)
    timeout = None if seconds is None else Duration(nanos=int(seconds * 1e9))
    reference = rpc.McpToolReference(name=tool)
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id, tool=reference, arguments=arguments, timeout=timeout, **fields
    )
    return await stubs.mcp.RunMcpServerTool(request)


async def _tools(stubs: Stubs, server: pb.McpServer, **fields: Any) -> dict[str, pb.McpTool]:
    answer = await stubs.mcp.ListMcpServerTools(rpc.ListMcpServerToolsRequest(mcp_server_id=server.id, **fields))
    return {tool.name: tool for tool in answer.tools}


@pytest.mark.parametrize("kind", [HTTP, "sse"])
async def test_tools_are_read_and_run(embedded: Stubs, kind: str) -> None:
    tools = {name: {"type": "object"} for name in ("fail", "long", "picture")} | {"echo": ECHO}
    async with running(kind, tools=tools, token=SECRET) as remote:
        server = await _created(embedded, _server(remote, kind, token=SECRET))
        assert (server.status, server.tool_count) == (pb.MCP_SERVER_STATUS_REACHABLE, 4), server.status_message
        listed = await _tools(embedded, server)
        assert listed["echo"].schema_health.status == pb.MCP_SCHEMA_STATUS_STRICT
        assert listed["fail"].schema_health.status == pb.MCP_SCHEMA_STATUS_NON_STRICT
        attached = await embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=listed["echo"].tool_id))
        assert (attached.tool.type, attached.tool.mcp_tool_name) == (tools_pb2.TOOL_TYPE_MCP, "echo")

        caller = rpc.McpCaller(agent_id="agent-1")
        answer = await _run(embedded, server, "echo", '{"text": 5}', caller=caller)
        assert (answer.status, answer.content[0].text.text) == (
            message_pb2.TOOL_RETURN_STATUS_SUCCESS,
            '{"text": "5"}',
        )
        assert remote.headers[-1].get("x-agent-id") == "agent-1"
        failed = await _run(embedded, server, "fail")
        assert (failed.status, failed.content[0].text.text) == (message_pb2.TOOL_RETURN_STATUS_ERROR, "It failed.")
        long = await _run(embedded, server, "long")
        assert len(long.content[0].text.text) == 50_000
        assert "truncated from 200000 to 50000 characters" in long.content[1].text.text
        picture = await _run(embedded, server, "picture")
        assert (picture.content[1].image.inline.data, picture.structured_content) == (PNG, '{"width": 1}')
        assert (await _refused(_run(embedded, server, "echo", "{}"))).reason == "TOOL_ARGUMENTS_INVALID"
        assert (await _refused(_run(embedded, server, "missing"))).reason == "NOT_FOUND"


async def test_a_changed_server_is_refreshed_under_the_same_ids(embedded: Stubs) -> None:
    async with running(tools={"echo": ECHO, "gone": ECHO}) as remote:
        server = await _created(embedded, _server(remote))
        before = await _tools(embedded, server)
        remote.tools = {"echo": {"type": "object"}, "new": ECHO}
        answer = await embedded.mcp.RefreshMcpServer(
            rpc.RefreshMcpServerRequest(mcp_server_id=server.id, request_id="once")
        )
        changed = [[tool.name for tool in group] for group in (answer.added, answer.updated, answer.removed)]
        assert changed == [["new"], ["echo"], ["gone"]]
        assert answer.updated[0].tool_id == before["echo"].tool_id
        tool_id = before["gone"].tool_id
        missing = embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool_id))
        assert (await _refused(missing)).reason == "NOT_FOUND"
        again = await embedded.mcp.RefreshMcpServer(
            rpc.RefreshMcpServerRequest(mcp_server_id=server.id, request_id="once")
        )
        assert again == answer


async def test_a_refresh_keeps_the_owner_s_settings_of_a_tool(embedded: Stubs) -> None:
    async with running() as remote:
        server = await _created(embedded, _server(remote))
        tool_id = (await _tools(embedded, server))["echo"].tool_id
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
        first = await _created(embedded, _server(remote, name="first"))
        second = await _created(embedded, _server(remote, name="second"))
        found = [json.loads(tool.json_schema)["name"] for tool in (await _tools(embedded, first)).values()]
        assert found == ["echo", "read_file", "first_send_message"]
        found = [json.loads(tool.json_schema)["name"] for tool in (await _tools(embedded, second)).values()]
        assert found == ["second_echo", "second_read_file", "second_send_message"]


async def test_schemas_that_models_cannot_use_are_not_offered(embedded: Stubs) -> None:
    large = {"type": "object", "description": "x" * 1_048_576}
    outside = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    tools = {"echo": ECHO, "large": large, "outside": outside}
    async with running(tools=tools) as remote:
        server = await _created(embedded, _server(remote))
        assert server.tool_count == 3, server.status_message
        invalid = await _tools(embedded, server, schema_statuses=[pb.MCP_SCHEMA_STATUS_INVALID])
        assert set(invalid) == {"large", "outside"}
        assert "100,000 characters" in invalid["large"].schema_health.reasons[0]
        assert "https://example.com/a.json" in invalid["outside"].schema_health.reasons[0]
        assert not invalid["outside"].HasField("json_schema")
        filter_ = tools_service_pb2.ToolFilter(mcp_server_id=server.id)
        offered = await embedded.tools.ListTools(tools_service_pb2.ListToolsRequest(filter=filter_))
        assert [tool.name for tool in offered.tools] == ["echo"]


async def test_a_tool_keeps_its_settings_while_its_schema_is_not_usable(stubs: Stubs) -> None:
    unusable = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    async with running() as remote:
        server = await _created(stubs, _server(remote))
        tool_id = (await _tools(stubs, server))["echo"].tool_id
        mine = tools_pb2.Tool(id=tool_id, default_requires_approval=True, return_char_limit=77, timeout_seconds=5)
        mask = FieldMask(paths=["default_requires_approval", "return_char_limit", "timeout_seconds"])
        await stubs.tools.UpdateTool(tools_service_pb2.UpdateToolRequest(tool=mine, update_mask=mask))
        request, refresh = tools_service_pb2.GetToolRequest(tool_id=tool_id), rpc.RefreshMcpServerRequest
        for _ in range(2):
            remote.tools = {"echo": {**unusable, "description": f"{_}"}}
            await stubs.mcp.RefreshMcpServer(refresh(mcp_server_id=server.id))
            assert (await _refused(stubs.tools.GetTool(request))).reason == "NOT_FOUND"
        remote.tools = {"echo": {"type": "object", "properties": {"number": {"type": "integer"}}}}
        await stubs.mcp.RefreshMcpServer(refresh(mcp_server_id=server.id))
        found = (await stubs.tools.GetTool(request)).tool
        assert (found.default_requires_approval, found.return_char_limit, found.timeout_seconds) == (True, 77, 5)
        assert "number" in found.json_schema
        assert "example.com" not in found.json_schema


async def test_a_server_with_too_many_schemas_is_refused(embedded: Stubs) -> None:
    schema = {"type": "object", "description": "x" * 90_000}
    async with running(tools={f"tool_{number}": schema for number in range(45)}) as remote:
        server = await _created(embedded, _server(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "4,000,000 characters" in server.status_message


async def test_a_list_that_repeats_its_pages_is_refused(embedded: Stubs) -> None:
    async with running(cursors=repeat("same")) as remote:
        server = await _created(embedded, _server(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "repeats the pages" in server.status_message
        assert server.tool_count == 0
        remote.cursors = iter(["second"])
        request = rpc.RefreshMcpServerRequest(mcp_server_id=server.id)
        assert (await embedded.mcp.RefreshMcpServer(request)).mcp_server.tool_count == 1


async def test_secrets_are_kept_and_never_shown(embedded: Stubs, tmp_path: Path, capfd: Any) -> None:
    async with running(token=SECRET) as remote:
        given = _server(remote, token=SECRET, headers={"x-key": "hidden-header", "x-agent": "{{ NAME }}"})
        server = await _created(embedded, given, request_id="one")
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "NAME" in server.status_message, "the variable has no value yet"
        caller = rpc.McpCaller(variables={"NAME": "Ada"})
        refreshed = await embedded.mcp.RefreshMcpServer(
            rpc.RefreshMcpServerRequest(mcp_server_id=server.id, caller=caller)
        )
        shown = refreshed.mcp_server.streamable_http
        assert [(item.value, item.has_value) for item in shown.headers] == [("", True), ("{{ NAME }}", True)]
        assert shown.auth.token.has_value
        assert not shown.auth.token.HasField("value")
        assert {"x-key": "hidden-header", "x-agent": "Ada"}.items() <= remote.headers[-1].items()

        # An update without values keeps them.
        transport = pb.StreamableHttpTransport(
            url=remote.url + "/", auth=pb.HttpAuth(token=pb.McpSecret()), headers=[pb.McpSecret(name="X-Key")]
        )
        changed = await embedded.mcp.UpdateMcpServer(
            rpc.UpdateMcpServerRequest(
                mcp_server=pb.McpServer(id=server.id, streamable_http=transport),
                update_mask=FieldMask(paths=["streamable_http"]),
                base_revision=1,
            )
        )
        assert changed.mcp_server.revision == 2
        await embedded.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id))
        assert remote.headers[-1]["x-key"] == "hidden-header"
        again = await _created(embedded, given, request_id="one")
        assert again.id == server.id
        other = _server(remote, token="another-token", headers={"x-key": "hidden-header", "x-agent": "{{ NAME }}"})
        reused = _created(embedded, other, request_id="one")
        assert (await _refused(reused)).reason == "REQUEST_ID_REUSED"
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tools.db*"))
    output = "".join(capfd.readouterr())
    for secret in (SECRET, "hidden-header"):
        assert secret.encode() not in stored
        assert secret not in output


async def test_a_server_that_refuses_or_redirects_is_a_result(embedded: Stubs) -> None:
    async with running(token=SECRET) as remote, running() as elsewhere:
        wrong = "wrong-token-9876543210"
        server = await _created(embedded, _server(remote, token=wrong))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "401" in server.status_message
        assert wrong not in server.status_message
        error = await _refused(embedded.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=server.id)))
        assert error.reason == "MCP_SERVER_UNREACHABLE"
        tested = await embedded.mcp.TestMcpServer(
            rpc.TestMcpServerRequest(mcp_server=_server(remote, name="", token=SECRET))
        )
        assert [tool.name for tool in tested.tools] == ["echo"]
        assert tested.protocol_version
        elsewhere.token, remote.location = SECRET, elsewhere.url
        tested = await embedded.mcp.TestMcpServer(
            rpc.TestMcpServerRequest(mcp_server=_server(remote, name="", token=SECRET))
        )
        assert (tested.status, elsewhere.headers) == (pb.MCP_SERVER_STATUS_UNREACHABLE, [])
        assert "edirect" in tested.status_message
    tested = await embedded.mcp.TestMcpServer(rpc.TestMcpServerRequest(mcp_server_id=server.id))
    assert tested.status == pb.MCP_SERVER_STATUS_UNREACHABLE


async def test_a_server_that_hangs_is_bounded(embedded: Stubs) -> None:
    async with running(tools={"hang": {"type": "object"}}) as remote:
        server = await _created(embedded, _server(remote))
        for seconds in growing(0.2):
            error = await _refused(_run(embedded, server, "hang", seconds=seconds))
            if remote.entered.is_set():
                break
        assert error.reason == "DEADLINE_EXCEEDED"
        await asyncio.wait_for(remote.cancelled.wait(), scaled(60))
        remote.cancelled.clear()
        remote.entered.clear()
        call = asyncio.ensure_future(_run(embedded, server, "hang"))
        await asyncio.wait_for(remote.entered.wait(), scaled(60))
        call.cancel()
        await asyncio.wait_for(remote.cancelled.wait(), scaled(60))
        remote.hangs = True
        request = rpc.TestMcpServerRequest(mcp_server_id=server.id)
        tested = await embedded.mcp.TestMcpServer(request, timeout=scaled(2.0))  # half of it is left for the answer
        assert tested.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "seconds" in tested.status_message


async def test_the_creation_of_a_server_that_hangs_is_bounded_and_leaves_no_unread_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what earlier tests have left is not of interest
    caplog.clear()
    config = Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", warm_processes=0)
    async with serve(config, McpLimits(create_seconds=0.5)) as stubs, running(tools={"echo": ECHO}) as remote:
        remote.hangs = True
        server = await _created(stubs, _server(remote))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "seconds" in server.status_message
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("kind", [HTTP, "sse"])
async def test_a_session_recovers_and_a_broken_call_is_not_repeated(embedded: Stubs, kind: str) -> None:
    async with running(kind, tools={"echo": ECHO, "die": {"type": "object"}}) as remote:
        server = await _created(embedded, _server(remote, kind))
        for _ in range(2):
            await _run(embedded, server, "echo", '{"text": "a"}')
        before = remote.connections
        error = await _refused(_run(embedded, server, "die", request_id="deadly"))
        assert (error.reason, [name for name, _ in remote.calls].count("die")) == ("ABORTED", 1)
        again = await _refused(_run(embedded, server, "die", request_id="deadly"))
        assert (again.reason, [name for name, _ in remote.calls].count("die")) == ("ABORTED", 1)
        await remote.stop()
        unreachable = await _refused(_run(embedded, server, "echo", '{"text": "b"}', request_id="later"))
        assert unreachable.reason == "MCP_SERVER_UNREACHABLE", unreachable.message
        await remote.start(kind)
        answer = await _run(embedded, server, "echo", '{"text": "b"}', request_id="later")
        assert answer.content[0].text.text == '{"text": "b"}'
        assert remote.connections > before


async def test_a_repeated_run_returns_the_first_result(embedded: Stubs) -> None:
    async with running() as remote:
        server = await _created(embedded, _server(remote))
        both = [_run(embedded, server, "echo", '{"text": "a"}', request_id="one") for _ in range(2)]
        first, second = await asyncio.gather(*both)
        third = await _run(embedded, server, "echo", '{"text": "a"}', request_id="one")
        assert first == second == third
        assert len(remote.calls) == 1
        other = _run(embedded, server, "echo", '{"text": "b"}', request_id="one")
        assert (await _refused(other)).reason == "REQUEST_ID_REUSED"


async def test_organizations_are_separate_and_private_addresses_are_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    config = Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", auth_key_file=str(tmp_path / "keys"))
    tokens = [mint_token(KEY.encode(), Principal(new_id("org"), new_id("user")), 60) for _ in range(2)]
    mine, theirs = ((("authorization", f"Bearer {token}"),) for token in tokens)
    async with running() as remote, serve(config) as stubs:
        request = rpc.CreateMcpServerRequest(mcp_server=_server(remote))
        server = (await stubs.mcp.CreateMcpServer(request, metadata=mine)).mcp_server
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE
        assert "MNEMESH_TOOLS_PRIVATE_NETWORKS" in server.status_message
        assert not remote.headers
        reference, mask = rpc.McpToolReference(name="echo"), FieldMask(paths=["name"])
        own = {"mcp_server_id": server.id}
        renamed = pb.McpServer(id=server.id, name="theirs")
        for call in (
            stubs.mcp.GetMcpServer(rpc.GetMcpServerRequest(**own), metadata=theirs),
            stubs.mcp.UpdateMcpServer(
                rpc.UpdateMcpServerRequest(mcp_server=renamed, update_mask=mask), metadata=theirs
            ),
            stubs.mcp.ListMcpServerTools(rpc.ListMcpServerToolsRequest(**own), metadata=theirs),
            stubs.mcp.GetMcpServerTool(rpc.GetMcpServerToolRequest(**own, tool=reference), metadata=theirs),
            stubs.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(**own), metadata=theirs),
            stubs.mcp.RunMcpServerTool(rpc.RunMcpServerToolRequest(**own, tool=reference), metadata=theirs),
            stubs.mcp.TestMcpServer(rpc.TestMcpServerRequest(**own), metadata=theirs),
        ):
            assert (await _refused(call)).reason == "NOT_FOUND"
        await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server.id), metadata=theirs)
        assert not (await stubs.mcp.ListMcpServers(rpc.ListMcpServersRequest(), metadata=theirs)).mcp_servers
        assert len((await stubs.mcp.ListMcpServers(rpc.ListMcpServersRequest(), metadata=mine)).mcp_servers) == 1


HEADER = [pb.McpSecret(name="x", value="y")]


@pytest.mark.parametrize(
    ("server", "field"),
    [
        (pb.McpServer(sse=pb.SseTransport(url="http://a")), "mcp_server.name"),
        (pb.McpServer(name="a"), "mcp_server.transport"),
        (pb.McpServer(name="a", metadata="[]", sse=pb.SseTransport(url="http://a")), "mcp_server.metadata"),
        (pb.McpServer(name="a", sse=pb.SseTransport(url="ftp://a")), "mcp_server.sse.url"),
        (pb.McpServer(name="a", sse=pb.SseTransport(url="http://user:password@a")), "mcp_server.sse.url"),
        (
            pb.McpServer(name="a", sse=pb.SseTransport(url="http://a", headers=[pb.McpSecret(name="b c", value="d")])),
            "mcp_server.sse.headers[0].name",
        ),
        (
            pb.McpServer(name="a", sse=pb.SseTransport(url="http://a", headers=[pb.McpSecret(name="b", value="c\nd")])),
            "mcp_server.sse.headers[0].value",
        ),
        (pb.McpServer(name="a", sse=pb.SseTransport(url="http://a", headers=HEADER * 2)), "mcp_server.sse.headers"),
        (
            pb.McpServer(name="a", sse=pb.SseTransport(url="http://a", auth=pb.HttpAuth(token=pb.McpSecret()))),
            "mcp_server.sse.auth.token.value",
        ),
        (pb.McpServer(name="a", stdio=pb.StdioTransport()), "mcp_server.stdio.command"),
    ],
)
async def test_bad_input_names_the_field(embedded: Stubs, server: pb.McpServer, field: str) -> None:
    assert (await _refused(_created(embedded, server))).field == field
    assert not (await embedded.mcp.ListMcpServers(rpc.ListMcpServersRequest())).mcp_servers


async def test_servers_are_listed_changed_and_deleted(stubs: Stubs) -> None:
    programs = [pb.McpServer(name=name, stdio=pb.StdioTransport(command="serve")) for name in ("b", "a")]
    servers = [await _created(stubs, program) for program in programs]
    assert {server.status for server in servers} == {pb.MCP_SERVER_STATUS_DISABLED}
    listed = await stubs.mcp.ListMcpServers(
        rpc.ListMcpServersRequest(order_by=rpc.MCP_SERVER_ORDER_BY_NAME, page_size=1)
    )
    assert [server.name for server in listed.mcp_servers] == ["a"]
    assert listed.next_page_token
    refused = stubs.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=servers[0].id))
    assert (await _refused(refused)).reason == "MCP_TRANSPORT_DISABLED"
    rename = rpc.UpdateMcpServerRequest(
        mcp_server=pb.McpServer(id=servers[0].id, name="a"), update_mask=FieldMask(paths=["name"])
    )
    assert (await _refused(stubs.mcp.UpdateMcpServer(rename))).reason == "ALREADY_EXISTS"
    rename.mcp_server.name, rename.base_revision = "c", 7
    assert (await _refused(stubs.mcp.UpdateMcpServer(rename))).reason == "ABORTED"
    rename.base_revision = 1
    assert (await stubs.mcp.UpdateMcpServer(rename)).mcp_server.revision == 2
    for _ in range(2):
        await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=servers[0].id))
    gone = stubs.mcp.GetMcpServer(rpc.GetMcpServerRequest(mcp_server_id=servers[0].id))
    assert (await _refused(gone)).reason == "NOT_FOUND"


async def test_deleting_a_server_deletes_its_tools(embedded: Stubs) -> None:
    async with running() as remote:
        server = await _created(embedded, _server(remote))
        tool_id = (await _tools(embedded, server))["echo"].tool_id
        await embedded.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server.id))
        missing = embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool_id))
        assert (await _refused(missing)).reason == "NOT_FOUND"
