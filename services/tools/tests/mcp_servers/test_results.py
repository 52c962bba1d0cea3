"""What MCP servers return, without the values of their settings: texts, structured content, errors, and output."""

import json
from pathlib import Path
from typing import Any

import pytest
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_sandbox.redaction import Redactor
from mnemesh_testkit.errors import catch_refusal
from mnemesh_testkit.plugin import sampled
from mnemesh_tools.mcp_clients.transports import ProgramOutput

from ..conftest import Stubs
from .remote_calls import created, run_tool, server_at, tools_by_name
from .scripted import rpc_error, scripted

HEADER = "canary-header-0123456789"
RESULTS: list[dict[str, Any]] = [
    {"content": [{"type": "text", "text": f"the token is {HEADER}."}]},
    {"content": [{"type": "text", "text": f"Authorization: Bearer {HEADER}"}], "isError": True},
    {
        "content": [{"type": "text", "text": json.dumps({"key": HEADER})}],
        "structuredContent": {"a": [{HEADER: HEADER}]},
    },
    {"content": [{"type": "resource", "resource": {"uri": f"file:///{HEADER}", "text": f"x{HEADER}x"}}]},
    {"content": [{"type": "resource_link", "name": HEADER, "uri": f"https://example.com/?key={HEADER}"}]},
    {"content": [{"type": "audio", "mimeType": HEADER, "data": "AAAA"}]},
    {"content": [{"type": HEADER, "x": 1}, HEADER]},
]


@pytest.mark.parametrize("result", sampled(RESULTS, 3))
@pytest.mark.parametrize("place", ["token", "header"])
async def test_no_result_shows_a_value_of_the_settings(
    embedded: Stubs, tmp_path: Path, result: dict[str, Any], place: str
) -> None:
    async with scripted(result=result) as remote:
        settings = {"token": HEADER} if place == "token" else {"headers": {"x-key": HEADER}}
        server = await created(embedded, server_at(remote, **settings))
        answer = await run_tool(embedded, server, "echo", request_id="one")
        again = await run_tool(embedded, server, "echo", request_id="one")
        assert answer == again
        assert HEADER not in str(answer)
        assert "[secret" in str(answer)
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("tools.db*"))
    assert HEADER.encode() not in stored


async def test_neither_errors_nor_definitions_show_a_value(embedded: Stubs) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "default": HEADER}}}
    tools = [{"name": "echo", "description": f"Uses {HEADER}.", "inputSchema": schema}, {"name": f"{HEADER}\n"}]
    async with scripted(tools=tools, answer=rpc_error(200, -32000, f"bad key {HEADER}")) as remote:
        server = await created(embedded, server_at(remote, token=HEADER))
        assert HEADER not in str(server)
        assert HEADER not in str(await tools_by_name(embedded, server))
        answer = await run_tool(embedded, server, "echo")
        assert "[secret token]" in answer.content[0].text.text
        assert HEADER not in str(answer)
        remote.answer = rpc_error(404, -32000, f"bad key {HEADER}")
        assert HEADER not in (await catch_refusal(run_tool(embedded, server, "echo"))).message


async def test_a_number_that_is_a_secret_is_removed_and_the_agent_may_be_named(embedded: Stubs) -> None:
    result = {"content": [{"type": "text", "text": "for agent-1"}], "structuredContent": {"pin": 123456, "count": 5}}
    async with scripted(result=result) as remote:
        server = await created(embedded, server_at(remote, headers={"x-pin": "123456", "x-who": "{{ AGENT_ID }}"}))
        assert server.status == pb.MCP_SERVER_STATUS_UNREACHABLE, "a refresh has no agent"
        request = rpc.RefreshMcpServerRequest(mcp_server_id=server.id, caller=rpc.McpCaller(agent_id="agent-1"))
        await embedded.mcp.RefreshMcpServer(request)
        answer = await run_tool(embedded, server, "echo", caller=rpc.McpCaller(agent_id="agent-1"))
        assert json.loads(answer.structured_content) == {"pin": "[secret x-pin]", "count": 5}
        assert answer.content[0].text.text == "for agent-1"


def test_output_that_is_cut_within_a_value_has_no_part_of_it() -> None:
    secret = "canary-" + "0123456789" * 5
    for size in (8_150, 8_160, 8_175, 8_185):
        output = ProgramOutput(Redactor({"TOKEN": secret}))
        output.add(f"before {secret}".encode())
        output.add(b"x" * size)
        assert "456789" not in output.text
        output.add(secret[:20].encode())
        assert "012345" not in output.text
