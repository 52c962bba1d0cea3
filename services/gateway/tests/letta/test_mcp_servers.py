"""Updates of MCP servers: what a request does not name stays as it is."""

from collections.abc import Iterator
from typing import Any

import letta_client
import pytest
from mnemesh.tools.v1 import mcp_servers_pb2 as pb
from mnemesh.tools.v1 import mcp_servers_service_pb2 as rpc
from mnemesh_testkit.fakes.mcp_server import ECHO, Remote

from .lab import Lab

TOKEN = "first-token-0123456789"
SERVICE = "mnemesh.tools.v1.McpServerService"


@pytest.fixture
def remote(lab: Lab) -> Iterator[Remote]:
    """A server that requires a token."""
    remote = Remote(token=TOKEN)
    lab.run(remote.start())
    yield remote
    lab.run(remote.stop())


@pytest.fixture
def server_id(lab: Lab, remote: Remote) -> Iterator[str]:
    """The server, stored with a token and two headers."""
    config = {
        "mcp_server_type": "streamable_http",
        "server_url": remote.url,
        "auth_token": TOKEN,
        "auth_header": "Authorization",
        "custom_headers": {"x-one": "1", "x-two": "2"},
    }
    made = lab.client.mcp_servers.create(server_name="remote", config=config)  # type: ignore[arg-type]
    yield str(made.id)
    lab.client.mcp_servers.delete(str(made.id))


def _update(lab: Lab, server_id: str, **config: Any) -> Any:
    return lab.client.mcp_servers.update(server_id, config=config)  # type: ignore[arg-type]


def _stored(lab: Lab, server_id: str) -> pb.McpServer:
    request = rpc.GetMcpServerRequest(mcp_server_id=server_id)
    server: pb.McpServer = lab.call(SERVICE, "GetMcpServer", request).mcp_server
    return server


def test_a_new_name_keeps_the_transport_and_its_secrets(lab: Lab, remote: Remote, server_id: str) -> None:
    changed = lab.client.mcp_servers.update(server_id, server_name="renamed", config={})  # type: ignore[typeddict-item]
    assert (changed.server_name, changed.server_url) == ("renamed", remote.url)  # type: ignore[union-attr]
    assert lab.client.mcp_servers.refresh(server_id) == {"added": [], "updated": [], "deleted": []}
    assert {"x-one": "1", "x-two": "2"}.items() <= remote.headers[-1].items()


def test_one_field_changes_alone(lab: Lab, remote: Remote, server_id: str) -> None:
    remote.token = "second-token-0123456789"
    _update(lab, server_id, auth_token=remote.token)
    lab.client.mcp_servers.refresh(server_id)
    assert remote.headers[-1]["x-two"] == "2"
    shown = _update(lab, server_id, custom_headers={"X-One": "", "x-three": "3"})
    assert set(shown.custom_headers) == {"X-One", "x-three"}
    lab.client.mcp_servers.refresh(server_id)
    sent = remote.headers[-1]
    assert (sent["x-one"], sent["x-three"], "x-two" in sent) == ("1", "3", False)
    _update(lab, server_id, server_url=None, auth_header="x-key")
    lab.call(SERVICE, "TestMcpServer", rpc.TestMcpServerRequest(mcp_server_id=server_id))
    assert remote.headers[-1]["x-key"] == remote.token


def test_null_clears_the_token_and_the_headers(lab: Lab, remote: Remote, server_id: str) -> None:
    remote.token = None
    shown = _update(lab, server_id, auth_token=None, custom_headers=None)
    assert (shown.auth_header, shown.custom_headers) == (None, None)
    lab.client.mcp_servers.refresh(server_id)
    assert not {"authorization", "x-one", "x-two"} & remote.headers[-1].keys()


def test_another_transport_keeps_the_url_and_the_secrets(lab: Lab, remote: Remote, server_id: str) -> None:
    shown = _update(lab, server_id, mcp_server_type="sse")
    assert (shown.mcp_server_type, shown.server_url, set(shown.custom_headers)) == (
        "sse",
        remote.url,
        {"x-one", "x-two"},
    )
    assert _stored(lab, server_id).sse.auth.token.has_value
    with pytest.raises(letta_client.UnprocessableEntityError, match="command"):
        _update(lab, server_id, mcp_server_type="stdio")


def test_another_host_needs_the_token_again(lab: Lab, remote: Remote, server_id: str) -> None:
    before = _stored(lab, server_id)
    with pytest.raises(letta_client.APIStatusError) as raised:
        _update(lab, server_id, server_url="http://127.0.0.2:1/mcp")
    assert raised.value.status_code == 400
    assert "required again" in str(raised.value)
    assert _stored(lab, server_id) == before
    lab.client.mcp_servers.refresh(server_id)
    assert remote.headers[-1]["authorization"] == f"Bearer {TOKEN}"


def test_a_program_keeps_its_packages_and_its_environment(lab: Lab) -> None:
    stdio = pb.StdioTransport(
        command="absent-program",
        args=["--one"],
        env=[pb.McpSecret(name="TOKEN", value=TOKEN)],
        network_hosts=["api.example.com"],
        persistent_directory=True,
    )
    request = rpc.CreateMcpServerRequest(mcp_server=pb.McpServer(name="program", stdio=stdio))
    server = lab.call(SERVICE, "CreateMcpServer", request).mcp_server
    _update(lab, server.id, args=["--two"])
    after = _stored(lab, server.id).stdio
    assert (after.command, list(after.args)) == ("absent-program", ["--two"])
    assert (list(after.network_hosts), after.persistent_directory) == (["api.example.com"], True)
    assert [(item.name, item.has_value) for item in after.env] == [("TOKEN", True)]
    shown = _update(lab, server.id, env={"TOKEN": "", "MODE": "{{ MODE | fast }}"})
    assert set(shown.env) == {"TOKEN", "MODE"}
    lab.client.mcp_servers.delete(server.id)


def test_a_refresh_keeps_the_approval_of_a_tool(lab: Lab, remote: Remote, server_id: str) -> None:
    (tool,) = lab.client.mcp_servers.tools.list(server_id)
    lab.client.tools.update(tool.id, default_requires_approval=True)
    unusable = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    for schema in ({"type": "object", "properties": {}}, unusable, ECHO):
        remote.tools = {"echo": schema}
        assert lab.client.mcp_servers.refresh(server_id)["updated"] == ["echo"]
    (again,) = lab.client.mcp_servers.tools.list(server_id)
    assert again.id == tool.id
    assert lab.client.tools.retrieve(tool.id).default_requires_approval is True
