"""Calls of McpServerService about servers of the official SDK."""

from typing import Any

from google.protobuf.duration_pb2 import Duration
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_testkit.fakes.mcp_server import Remote

from ..conftest import Stubs
from .scripted import Scripted

HTTP = "streamable_http"


def server_at(remote: Remote | Scripted, kind: str = HTTP, *, name: str = "remote", **settings: Any) -> pb.McpServer:
    headers = [pb.McpSecret(name=key, value=value) for key, value in settings.pop("headers", {}).items()]
    token = settings.pop("token", None)
    auth = None if token is None else pb.HttpAuth(token=pb.McpSecret(value=token))
    if kind == "sse":
        return pb.McpServer(name=name, sse=pb.SseTransport(url=remote.url, auth=auth, headers=headers))
    transport = pb.StreamableHttpTransport(url=remote.url, auth=auth, headers=headers)
    return pb.McpServer(name=name, streamable_http=transport)


async def created(stubs: Stubs, server: pb.McpServer, **fields: Any) -> pb.McpServer:
    answer = await stubs.mcp.CreateMcpServer(rpc.CreateMcpServerRequest(mcp_server=server, **fields))
    return answer.mcp_server


async def run_tool(stubs: Stubs, server: pb.McpServer, tool: str, arguments: str = "", **fields: Any) -> Any:
    seconds = fields.pop("seconds", None)
    timeout = None if seconds is None else Duration(nanos=int(seconds * 1e9))
    reference = rpc.McpToolReference(name=tool)
    request = rpc.RunMcpServerToolRequest(
        mcp_server_id=server.id, tool=reference, arguments=arguments, timeout=timeout, **fields
    )
    return await stubs.mcp.RunMcpServerTool(request)


async def tools_by_name(stubs: Stubs, server: pb.McpServer, **fields: Any) -> dict[str, pb.McpTool]:
    answer = await stubs.mcp.ListMcpServerTools(rpc.ListMcpServerToolsRequest(mcp_server_id=server.id, **fields))
    return {tool.name: tool for tool in answer.tools}
