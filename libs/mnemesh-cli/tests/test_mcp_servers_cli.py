"""The commands for MCP servers, over a whole mesh."""

import json
import sys
from typing import Any
from urllib.parse import urlencode

import pytest
import typer
from mnemesh_testkit.fakes.mcp_server import protected
from mnemesh_testkit.mesh.in_process import MeshThread

from .command_line import CommandLine


def test_servers_are_added_listed_shown_and_deleted(cli: CommandLine) -> None:
    code, created, err = cli.run("mcp-servers", "create", "tickets", "http://127.0.0.1:9/mcp")
    assert (code, "127.0.0.1:9: connection refused" in err) == (0, True)
    assert err.startswith("mnemesh: tickets was created, but its tools were not read")
    assert "`mnemesh mcp-servers refresh tickets`" in err
    server_id = created.strip()
    _, listed, _ = cli.run("mcp-servers", "list")
    assert ["tickets", "http", "unreachable", "0", server_id] in [line.split() for line in listed.splitlines()]
    assert max(len(line) for line in listed.splitlines()) <= 90
    _, shown, _ = cli.run("mcp-servers", "show", "tickets", "--json")
    assert json.loads(shown)["streamable_http"]["url"] == "http://127.0.0.1:9/mcp"
    code, updated, _ = cli.run("mcp-servers", "update", "tickets", "--url", "http://127.0.0.1:9/other")
    assert (code, updated.strip()) == (0, f"updated {server_id}")
    assert json.loads(cli.run("mcp-servers", "--json", "show", "tickets")[1])["streamable_http"]["url"].endswith(
        "/other"
    )
    assert cli.run("mcp-servers", "update", "tickets")[0] == 2
    code, _, err = cli.run("mcp-servers", "refresh", "tickets")
    assert (code, "cannot be reached" in err, err.count("\n")) == (1, True, 1)
    code, _, err = cli.run("mcp-servers", "show", "unknown")
    assert (code, err.count("\n")) == (3, 1)
    code, out, _ = cli.run("mcp-servers", "delete", "tickets", "--yes")
    assert (code, out.strip()) == (0, f"deleted {server_id}")


def test_options_of_a_url_may_be_anywhere_and_those_after_a_program_are_its_own(
    cli: CommandLine, closed_port: int
) -> None:
    url = f"http://127.0.0.1:{closed_port}/mcp"
    for number, line in enumerate((["{}", url, "--sse"], ["{}", "--sse", url], ["--sse", "{}", url, "--json"])):
        name = f"events{number}"
        assert cli.run("mcp-servers", "create", *(part.format(name) for part in line))[0] == 0
        assert "sse" in json.loads(cli.run("mcp-servers", "show", name, "--json")[1])
    assert cli.run("mcp-servers", "create", "other", url, "--target", f"127.0.0.1:{closed_port}")[0] == 4
    assert cli.run("mcp-servers", "create", "other", url, "more")[0] == 2
    code, created, _ = cli.run("mcp-servers", "create", "--json", "program", "no-such-program", "--json", "--host", "x")
    assert (code, json.loads(created)["stdio"]["args"]) == (0, ["--json", "--host", "x"])


def test_a_person_authorizes_a_server(cli: CommandLine, running: MeshThread, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = protected()
    remote = running.run(servers.__aenter__())

    def answer(*_: Any, **__: Any) -> str:
        url = sys.stdout.getvalue().strip()  # type: ignore[attr-defined]
        return f"http://127.0.0.1:8765/callback?{urlencode(running.run(remote.approve(url)))}"

    try:
        code, out, err = cli.run("mcp-servers", "create", "--oauth", "protected", remote.url)
        assert (code, "its tools were not read" in err) == (0, True)
        server_id = out.strip()
        with monkeypatch.context() as patch:
            patch.setattr(typer, "prompt", answer)
            code, out, err = cli.run("mcp-servers", "authorize", "protected")
            assert (code, out.splitlines()[1:], err) == (0, [f"authorized {server_id}, 2 tools"], "")
            patch.setattr(typer, "prompt", lambda *_, **__: "http://127.0.0.1:8765/callback?error=access_denied")
            code, _, err = cli.run("mcp-servers", "authorize", "protected")
        cli.run("mcp-servers", "delete", "protected", "--yes")
    finally:
        running.run(servers.__aexit__(None, None, None))
    assert (code, remote.grants) == (2, ["authorization_code"]), err
