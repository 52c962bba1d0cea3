"""The authorization of MCP servers by a person, as Letta's clients begin it: the stream of a connection."""

import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from mnemesh_kit.server import RunningServer
from mnemesh_testkit.fakes.mcp_server import Protected, protected
from mnemesh_testkit.timeouts import scaled

from .lab import Lab
from .rest import Rest

CALLBACK = "/tools/mcp/oauth/callback"


@pytest.fixture
def remote(lab: Lab) -> Iterator[Protected]:
    """A server that asks for tokens of its authorization server."""
    entered: AbstractAsyncContextManager[Protected] = protected()
    remote = lab.run(entered.__aenter__())
    yield remote
    lab.run(entered.__aexit__(None, None, None))


@pytest.fixture
def server_id(lab: Lab, remote: Protected) -> Iterator[str]:
    """The server, stored without credentials."""
    config: Any = {"mcp_server_type": "streamable_http", "server_url": remote.url}
    made = lab.client.mcp_servers.create(server_name="protected", config=config)
    yield str(made.id)
    lab.client.mcp_servers.delete(str(made.id))


class Connection:
    """The stream of a connection, read event by event."""

    def __init__(self, base_url: str, server_id: str) -> None:
        self._client = httpx.Client(base_url=f"{base_url}/v1", timeout=scaled(60))
        self._stream = self._client.stream("GET", f"/mcp-servers/connect/{server_id}")
        self._lines = self._stream.__enter__().iter_lines()

    def next(self) -> dict[str, Any]:
        """Returns the next event."""
        line = next(line for line in self._lines if line.startswith("data: "))
        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
        return event

    def close(self) -> None:
        """Ends the connection."""
        self._stream.__exit__(None, None, None)
        self._client.close()


@pytest.fixture
def connection(base_url: str, server_id: str) -> Iterator[Connection]:
    connection = Connection(base_url, server_id)
    yield connection
    connection.close()


def _waits(connection: Connection) -> str:
    """Reads the events until a person is to act, and returns the URL."""
    assert connection.next() == {"event": "connection_attempt", "server_name": "protected"}
    assert connection.next()["event"] == "oauth_required"
    asked = connection.next()
    assert asked["event"] == "authorization_url"
    parts = parse_qs(urlsplit(asked["url"]).query)
    assert parts["state"] == [asked["session_id"]]
    assert urlsplit(parts["redirect_uri"][0]).path == f"/v1{CALLBACK}"
    assert connection.next()["event"] == "waiting_for_auth"
    return str(asked["url"])


def test_a_person_authorizes_a_server_and_its_tools_are_used(
    lab: Lab, rest: Rest, remote: Protected, connection: Connection, server_id: str, base_url: str
) -> None:
    assert lab.client.mcp_servers.tools.list(server_id) == []
    answer = lab.run(remote.approve(_waits(connection)))
    received = rest.call("GET", CALLBACK, params=answer)
    assert received["status"] == "success"
    done = connection.next()
    assert (done["event"], [tool["name"] for tool in done["tools"]]) == ("success", ["whoami", "wait"])
    assert rest.call("GET", CALLBACK, params=answer)["status"] == "error", "a state works once"
    tool = next(tool for tool in lab.client.mcp_servers.tools.list(server_id) if tool.name == "whoami")
    result = lab.client.mcp_servers.tools.run(str(tool.id), mcp_server_id=server_id)
    assert (result.status, result.func_return) == ("success", "you")
    again = Connection(base_url, server_id)
    assert [again.next()["event"] for _ in range(2)] == ["connection_attempt", "success"]
    again.close()


def test_the_browser_may_come_back_to_another_gateway(
    lab: Lab, remote: Protected, connection: Connection, other: RunningServer
) -> None:
    answer = lab.run(remote.approve(_waits(connection)))
    elsewhere = Rest(f"http://{other.address}")
    assert elsewhere.call("GET", CALLBACK, params=answer)["status"] == "success"
    elsewhere.close()
    done = connection.next()
    assert (done["event"], [tool["name"] for tool in done["tools"]]) == ("success", ["whoami", "wait"])


def test_a_gateway_that_stops_says_so_and_the_authorization_goes_on(
    lab: Lab, rest: Rest, remote: Protected, server_id: str, base_url: str, other: RunningServer
) -> None:
    waiting = Connection(f"http://{other.address}", server_id)
    url = _waits(waiting)
    lab.run(other.stop())
    last = waiting.next()
    assert (last["event"], "stops" in last["message"]) == ("error", True)
    waiting.close()
    received = rest.call("GET", CALLBACK, params=lab.run(remote.approve(url)))
    assert received["status"] == "success"
    again = Connection(base_url, server_id)
    assert [again.next()["event"] for _ in range(2)] == ["connection_attempt", "success"]
    again.close()


def test_another_connection_replaces_the_first(
    lab: Lab, remote: Protected, connection: Connection, server_id: str, base_url: str
) -> None:
    _waits(connection)
    second = Connection(base_url, server_id)
    _waits(second)
    last = connection.next()
    assert (last["event"], "Start it again" in last["message"]) == ("error", True)
    second.close()


def test_a_refusal_of_the_person_ends_the_stream(rest: Rest, connection: Connection) -> None:
    url = _waits(connection)
    state = parse_qs(urlsplit(url).query)["state"][0]
    refused = rest.call("GET", CALLBACK, params={"state": state, "error": "access_denied"})
    assert (refused["status"], "access_denied" in refused["message"]) == ("error", True)
    last = connection.next()
    assert (last["event"], "access_denied" in last["message"]) == ("error", True)


@pytest.mark.parametrize("query", [{}, {"code": "x"}, {"code": "x", "state": "unknown"}])
def test_an_answer_that_nobody_waits_for_is_an_error(rest: Rest, query: dict[str, str]) -> None:
    assert rest.call("GET", CALLBACK, params=query)["status"] == "error"


def test_a_server_that_is_not_stored_is_not_authorized(rest: Rest, remote: Protected) -> None:
    config = {"server_name": "protected", "type": "streamable_http", "server_url": remote.url}
    lines = rest.text("POST", "/tools/mcp/servers/connect", json=config).splitlines()
    events = [json.loads(line.removeprefix("data: "))["event"] for line in lines if line.startswith("data: ")]
    assert events == ["connection_attempt", "oauth_required", "error"]
