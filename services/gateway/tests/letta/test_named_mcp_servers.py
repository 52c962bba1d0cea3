"""MCP servers under the paths of clients before 1.0, which use names, and the streams of connection tests."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from mnemesh_testkit.fakes.mcp_server import ECHO, Remote

from .lab import Lab
from .rest import Rest

TOKEN = "named-token-0123456789"
SERVERS = "/tools/mcp/servers"


@pytest.fixture
def remote(lab: Lab) -> Iterator[Remote]:
    """A server that requires a token."""
    remote = Remote(token=TOKEN)
    lab.run(remote.start())
    yield remote
    lab.run(remote.stop())


def _config(remote: Remote, **more: Any) -> dict[str, Any]:
    config = {"server_name": "named", "type": "streamable_http", "server_url": remote.url, "auth_token": TOKEN}
    return config | more


@pytest.fixture
def named(rest: Rest, remote: Remote) -> Iterator[str]:
    """The name of the server, stored with its token."""
    rest.call("PUT", SERVERS, json=_config(remote, custom_headers={"x-one": "1"}))
    yield "named"
    rest.call("DELETE", f"{SERVERS}/named")


def _events(rest: Rest, method: str, path: str, **more: Any) -> list[dict[str, Any]]:
    lines = rest.text(method, path, **more).splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_server_is_added_listed_and_deleted_by_its_name(rest: Rest, remote: Remote) -> None:
    added = rest.call("PUT", SERVERS, json=_config(remote))
    shown = {"server_name": "named", "type": "streamable_http", "server_url": remote.url, "auth_header": None}
    (server,) = [each for each in added if each["server_name"] == "named"]
    assert {name: server.get(name) for name in shown} == shown
    assert TOKEN not in str(added)
    assert rest.call("GET", SERVERS)["named"] == server
    assert "named" in rest.call("PUT", SERVERS, 409, json=_config(remote))["detail"]
    assert "named" not in {each["server_name"] for each in rest.call("DELETE", f"{SERVERS}/named")}
    for method, path in (("DELETE", ""), ("GET", "/tools"), ("POST", "/resync"), ("POST", "/echo")):
        assert "named" in rest.call(method, f"{SERVERS}/named{path}", 404)["detail"]


def test_a_tool_that_the_server_offers_is_added_and_used(lab: Lab, rest: Rest, remote: Remote, named: str) -> None:
    remote.tools = {"echo": ECHO, "later": ECHO}
    echo, later = rest.call("GET", f"{SERVERS}/{named}/tools")
    assert (echo["name"], echo["description"], echo["inputSchema"]) == ("echo", "Runs echo.", ECHO)
    assert echo["health"] == {"status": "STRICT_COMPLIANT", "reasons": []}
    assert later["name"] == "later"
    tool = rest.call("POST", f"{SERVERS}/{named}/later")
    assert (tool["name"], tool["tool_type"]) == ("later", "external_mcp")
    assert rest.call("POST", f"{SERVERS}/{named}/later")["id"] == tool["id"]
    agent = lab.agent(tool_ids=[tool["id"]])
    result = lab.client.agents.tools.run("later", agent_id=agent.id, args={"text": "Hi."})
    assert (result.status, remote.calls[-1]) == ("success", ("later", {"text": "Hi."}))
    assert "absent" in rest.call("POST", f"{SERVERS}/{named}/absent", 404)["detail"]


def test_a_tool_is_executed_by_its_name(rest: Rest, remote: Remote, named: str) -> None:
    path = f"{SERVERS}/{named}/tools/echo/execute"
    done = rest.call("POST", path, json={"args": {"text": "Hi."}})
    assert (done["success"], remote.calls[-1]) == (True, ("echo", {"text": "Hi."}))
    assert "Hi." in done["result"]
    assert "absent" in rest.call("POST", f"{SERVERS}/{named}/tools/absent/execute", 404, json={"args": {}})["detail"]


def test_a_resync_names_what_changed(rest: Rest, remote: Remote, named: str) -> None:
    remote.tools = {"say": ECHO}
    changed = rest.call("POST", f"{SERVERS}/{named}/resync")
    assert changed == {"added": ["say"], "updated": [], "deleted": ["echo"]}


def test_an_update_keeps_what_it_does_not_name(rest: Rest, remote: Remote, named: str) -> None:
    remote.token = "second-token-0123456789"
    changed = rest.call("PATCH", f"{SERVERS}/{named}", json={"auth_token": remote.token})
    assert (changed["server_url"], set(changed["custom_headers"])) == (remote.url, {"x-one"})
    rest.call("POST", f"{SERVERS}/{named}/resync")
    assert (remote.headers[-1]["authorization"], remote.headers[-1]["x-one"]) == (f"Bearer {remote.token}", "1")
    rest.call("PATCH", f"{SERVERS}/{named}", json={"token": "wrong-token-0123456789"})
    refused = rest.call("GET", f"{SERVERS}/{named}/tools", 502)
    assert refused["error"]["type"] == "mcp_connection_error"
    program = {"server_name": named, "command": "absent-program", "args": ["--one"], "env": {"MODE": "fast"}}
    changed = rest.call("PATCH", f"{SERVERS}/{named}", json={"stdio_config": program})
    assert (changed["type"], changed["command"], changed["args"]) == ("stdio", "absent-program", ["--one"])
    assert "server_url" not in changed


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"type": "streamable_http", "server_url": "http://127.0.0.1:1/mcp"}, "server_name"),
        ({"server_name": "x", "type": "sse"}, "server_url"),
        ({"server_name": "x", "type": "stdio"}, "command"),
        ({"server_name": "x", "type": "carrier_pigeon", "server_url": "http://127.0.0.1:1/"}, "type"),
        ({"server_name": 7, "type": "sse", "server_url": "http://127.0.0.1:1/"}, "server_name"),
    ],
)
def test_a_wrong_server_is_refused_and_not_stored(rest: Rest, body: dict[str, Any], words: str) -> None:
    before = rest.call("GET", SERVERS)
    for method, path in (("PUT", ""), ("POST", "/test"), ("POST", "/connect")):
        assert words in rest.call(method, SERVERS + path, 422, json=body)["detail"]
    assert rest.call("GET", SERVERS) == before


def test_a_test_returns_the_tools_and_stores_nothing(rest: Rest, remote: Remote) -> None:
    tested = rest.call("POST", f"{SERVERS}/test", json=_config(remote))
    assert (tested["status"], [tool["name"] for tool in tested["tools"]]) == ("success", ["echo"])
    attempt, success = _events(rest, "POST", f"{SERVERS}/connect", json=_config(remote))
    assert attempt == {"event": "connection_attempt", "server_name": "named"}
    assert (success["event"], [tool["name"] for tool in success["tools"]]) == ("success", ["echo"])
    assert "named" not in rest.call("GET", SERVERS)
    wrong = _config(remote, auth_token="wrong-token-0123456789")
    assert rest.call("POST", f"{SERVERS}/test", 502, json=wrong)["error"]["type"] == "mcp_connection_error"
    last = _events(rest, "POST", f"{SERVERS}/connect", json=wrong)[-1]
    assert last["event"] == "error"
    assert last["message"]


def test_a_stored_server_is_tested_by_its_id(lab: Lab, rest: Rest, remote: Remote, named: str) -> None:
    (server,) = [each for each in lab.client.mcp_servers.list() if each.server_name == named]
    events = _events(rest, "GET", f"/mcp-servers/connect/{server.id}")
    assert [event["event"] for event in events] == ["connection_attempt", "success"]
    lab.run(remote.stop())
    try:
        events = _events(rest, "GET", f"/mcp-servers/connect/{server.id}")
        assert [event["event"] for event in events] == ["connection_attempt", "error"]
    finally:
        lab.run(remote.start())
    rest.call("GET", "/mcp-servers/connect/mcp_server-123e4567-e89b-42d3-8456-426614174000", 404)
