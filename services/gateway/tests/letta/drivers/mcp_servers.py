"""MCP servers and their tools."""

import letta_client
import pytest
from mnemesh_testkit.fakes.mcp_server import ECHO, Remote

from ..lab import Lab, drives


@drives(
    "mcp_servers.create",
    "mcp_servers.retrieve",
    "mcp_servers.list",
    "mcp_servers.update",
    "mcp_servers.delete",
    "mcp_servers.refresh",
    "mcp_servers.tools.list",
    "mcp_servers.tools.retrieve",
    "mcp_servers.tools.run",
)
def mcp_servers(lab: Lab) -> None:
    remote = Remote(token="secret-token")
    lab.run(remote.start())
    try:
        _drive(lab, remote)
    finally:
        lab.run(remote.stop())


def _drive(lab: Lab, remote: Remote) -> None:
    servers = lab.client.mcp_servers
    config = {"mcp_server_type": "streamable_http", "server_url": remote.url, "auth_token": "secret-token"}
    made = servers.create(server_name="remote", config=config)  # type: ignore[arg-type]
    server_id = str(made.id)
    assert server_id.startswith("mcp_server-")
    assert (made.server_name, made.mcp_server_type, made.server_url) == ("remote", "streamable_http", remote.url)  # type: ignore[union-attr]
    assert "secret-token" not in made.to_json()
    assert servers.retrieve(server_id) == made
    assert server_id in [server.id for server in servers.list()]
    assert [tool.name for tool in servers.tools.list(server_id)] == ["echo"], "creating reads the tools"
    remote.tools = {"echo": ECHO, "say": ECHO}
    assert servers.refresh(server_id) == {"added": ["say"], "updated": [], "deleted": []}
    remote.tools = {"echo": ECHO}
    assert servers.refresh(server_id) == {"added": [], "updated": [], "deleted": ["say"]}
    (tool,) = servers.tools.list(server_id)
    assert (tool.name, tool.tool_type) == ("echo", "external_mcp")
    assert servers.tools.retrieve(tool.id, mcp_server_id=server_id) == tool
    result = servers.tools.run(tool.id, mcp_server_id=server_id, args={"text": "Hi."})
    assert result.status == "success"
    assert remote.calls[-1] == ("echo", {"text": "Hi."})
    agent = lab.agent(tool_ids=[tool.id])
    assert [held.name for held in agent.tools] == ["echo"]
    changed = servers.update(server_id, server_name="renamed", config=config)  # type: ignore[arg-type]
    assert changed.server_name == "renamed"
    with pytest.raises(letta_client.UnprocessableEntityError, match="server_url"):
        servers.create(server_name="x", config={"mcp_server_type": "sse"})  # type: ignore[typeddict-item]
    servers.delete(server_id)
    with pytest.raises(letta_client.NotFoundError):
        servers.retrieve(server_id)
