"""McpServerService against servers of the official SDK: servers, their secrets and their owners."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh.tools.v1 import tools_service_pb2
from mnemesh_kit.auth import mint_token
from mnemesh_kit.call_context import Principal
from mnemesh_kit.ids import new_id
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.fakes.mcp_server import running
from mnemesh_tools.config import Config

from ..conftest import Stubs, serve
from .remote_calls import created, server_at, tools_by_name

SECRET = "canary-token-0123456789"
KEY = "k" * 32
HEADER = [pb.McpSecret(name="x", value="y")]


async def test_secrets_are_kept_and_never_shown(embedded: Stubs, tmp_path: Path, capfd: Any) -> None:
    async with running(token=SECRET) as remote:
        given = server_at(remote, token=SECRET, headers={"x-key": "hidden-header", "x-agent": "{{ NAME }}"})
        server = await created(embedded, given, request_id="one")
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
        again = await created(embedded, given, request_id="one")
        assert again.id == server.id
        other = server_at(remote, token="another-token", headers={"x-key": "hidden-header", "x-agent": "{{ NAME }}"})
        reused = created(embedded, other, request_id="one")
        assert (await catch_refusal(reused)).reason == "REQUEST_ID_REUSED"
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tools.db*"))
    output = "".join(capfd.readouterr())
    for secret in (SECRET, "hidden-header"):
        assert secret.encode() not in stored
        assert secret not in output


async def test_organizations_are_separate_and_private_addresses_are_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    config = Config(port=0, data_dir=str(tmp_path), min_sandbox="minimal", auth_key_file=str(tmp_path / "keys"))
    tokens = [mint_token(KEY.encode(), Principal(new_id("org"), new_id("user")), 60) for _ in range(2)]
    mine, theirs = ((("authorization", f"Bearer {token}"),) for token in tokens)
    async with running() as remote, serve(config) as stubs:
        request = rpc.CreateMcpServerRequest(mcp_server=server_at(remote))
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
            assert (await catch_refusal(call)).reason == "NOT_FOUND"
        await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server.id), metadata=theirs)
        assert not (await stubs.mcp.ListMcpServers(rpc.ListMcpServersRequest(), metadata=theirs)).mcp_servers
        assert len((await stubs.mcp.ListMcpServers(rpc.ListMcpServersRequest(), metadata=mine)).mcp_servers) == 1


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
    assert (await catch_refusal(created(embedded, server))).field == field
    assert not (await embedded.mcp.ListMcpServers(rpc.ListMcpServersRequest())).mcp_servers


async def test_servers_are_listed_changed_and_deleted(stubs: Stubs) -> None:
    programs = [pb.McpServer(name=name, stdio=pb.StdioTransport(command="serve")) for name in ("b", "a")]
    servers = [await created(stubs, program) for program in programs]
    assert {server.status for server in servers} == {pb.MCP_SERVER_STATUS_DISABLED}
    listed = await stubs.mcp.ListMcpServers(
        rpc.ListMcpServersRequest(order_by=rpc.MCP_SERVER_ORDER_BY_NAME, page_size=1)
    )
    assert [server.name for server in listed.mcp_servers] == ["a"]
    assert listed.next_page_token
    refresh = stubs.mcp.RefreshMcpServer(rpc.RefreshMcpServerRequest(mcp_server_id=servers[0].id))
    assert (await catch_refusal(refresh)).reason == "MCP_TRANSPORT_DISABLED"
    rename = rpc.UpdateMcpServerRequest(
        mcp_server=pb.McpServer(id=servers[0].id, name="a"), update_mask=FieldMask(paths=["name"])
    )
    assert (await catch_refusal(stubs.mcp.UpdateMcpServer(rename))).reason == "ALREADY_EXISTS"
    rename.mcp_server.name, rename.base_revision = "c", 7
    assert (await catch_refusal(stubs.mcp.UpdateMcpServer(rename))).reason == "ABORTED"
    rename.base_revision = 1
    assert (await stubs.mcp.UpdateMcpServer(rename)).mcp_server.revision == 2
    for _ in range(2):
        await stubs.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=servers[0].id))
    gone = stubs.mcp.GetMcpServer(rpc.GetMcpServerRequest(mcp_server_id=servers[0].id))
    assert (await catch_refusal(gone)).reason == "NOT_FOUND"


async def test_deleting_a_server_deletes_its_tools(embedded: Stubs) -> None:
    async with running() as remote:
        server = await created(embedded, server_at(remote))
        tool_id = (await tools_by_name(embedded, server))["echo"].tool_id
        await embedded.mcp.DeleteMcpServer(rpc.DeleteMcpServerRequest(mcp_server_id=server.id))
        missing = embedded.tools.GetTool(tools_service_pb2.GetToolRequest(tool_id=tool_id))
        assert (await catch_refusal(missing)).reason == "NOT_FOUND"
