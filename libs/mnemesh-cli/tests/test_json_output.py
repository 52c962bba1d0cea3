"""Every command prints JSON objects with `--json`, one per line, and nothing else on stdout."""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import typer
from mnemesh.recall.v1 import episodes_pb2
from mnemesh_testkit.fakes.mcp_server import protected
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.mesh.in_process import MeshThread

from .command_line import CommandLine
from .command_tree import all_commands

ELSEWHERE = {
    "mcp": "its stdout has messages of the Model Context Protocol, which are JSON",
    "up": "test_up.py starts it as a process",
    "backup": "test_backups.py reads it",
    "restore": "test_backups.py reads it",
    "verify": "test_backups.py reads it",
    "maintain": "test_up.py runs it on the databases of a stopped mesh",
}
ADD = '''def add_numbers(left: int, right: int = 1) -> int:
    """Adds two numbers.

    Args:
        left: The first one.
        right: The second one.
    """
    return left + right
'''


class Script:
    """Runs commands with `--json`, and remembers which ones it has run."""

    def __init__(self, cli: CommandLine) -> None:
        self._cli = cli
        self.commands: set[str] = set()

    def rows(self, command: str, *arguments: str, stdin: str = "", code: int = 0) -> list[dict[str, Any]]:
        """Runs a command, which exits with `code`. Returns the objects that it prints."""
        found, out, err = self._cli.run(*command.split(), "--json", *arguments, stdin=stdin)
        assert found == code, (command, out, err)
        self.commands.add(command)
        rows = [json.loads(line) for line in out.splitlines()]
        assert all(isinstance(row, dict) for row in rows), (command, out)
        return rows

    def row(self, command: str, *arguments: str, stdin: str = "", code: int = 0) -> dict[str, Any]:
        """As `rows`, for a command that prints one object."""
        rows = self.rows(command, *arguments, stdin=stdin, code=code)
        assert len(rows) == 1, (command, rows)
        return rows[0]


@pytest.fixture
def script(cli: CommandLine) -> Script:
    return Script(cli)


def test_every_command_prints_json(script: Script, cli: CommandLine, running: MeshThread, tmp_path: Path) -> None:
    agents_and_conversations(script, cli)
    memory(script, cli, running)
    archives_and_files(script, tmp_path)
    tools(script, tmp_path)
    mcp_servers(script, running)
    groups_and_people(script)
    moves(script, tmp_path)
    mesh(script, running, tmp_path)
    all_names = {path.removeprefix("mnemesh ") for path in all_commands()}
    assert script.commands | set(ELSEWHERE) == all_names


def agents_and_conversations(script: Script, cli: CommandLine) -> None:
    agent = script.row("agents create", "jo", "--human", "Likes tea.")
    assert script.row("agents show", "jo")["id"] == agent["id"]
    assert [row["name"] for row in script.rows("agents list")] == ["jo"]
    assert script.row("agents update", "jo", "--description", "A test.")["description"] == "A test."
    assert script.row("agents recompile", "jo", "--dry-run")["system_text"]
    assert script.row("agents preview", "jo", "Hello.")
    events = script.rows("messages send", "jo", "My name is Jo.")
    assert {"message", "stop"} <= {name for event in events for name in event}
    [message, *_] = script.rows("messages list", "--agent", "jo")
    assert script.row("messages show", message["id"])["id"] == message["id"]
    assert script.rows("messages search", "name Jo", "--agent", "jo")[0]["message"]
    assert {row["kind"] for row in script.rows("search", "Jo", "--agent", "jo")} == {"message"}
    assert script.row("messages delete", message["id"], "--yes") == {"deleted": message["id"]}
    lines = script.rows("chat", "--agent", "jo", stdin="Hello.\nAnd again.\n")
    assert sum("stop" in line for line in lines) == 2

    [run, *_] = script.rows("runs list", "--agent", "jo")
    assert script.row("runs show", run["id"])["id"] == run["id"]
    assert script.rows("runs trace", run["id"])[0]["number"] == 1
    assert script.rows("runs logs", run["id"])
    assert script.row("runs cancel", run["id"])
    assert script.rows("runs retry", run["id"], code=1) == []  # it has not failed
    assert script.row("runs delete", run["id"], "--yes") == {"deleted": run["id"]}

    [conversation] = script.rows("conversations list", "--agent", "jo")
    assert script.row("conversations show", conversation["id"])["is_default"]
    created = script.row("conversations create", "jo", "--summary", "Other.")
    forked = script.row("conversations fork", conversation["id"])
    assert script.row("conversations compact", conversation["id"], "--dry-run")
    assert script.row("conversations cancel", conversation["id"]) == {}
    assert script.row("conversations delete", created["id"], "-y")["deleted"] != forked["id"]

    cli.require_approval(cli.agent("al", blocks={"human": ""}), "memory_insert")
    script.rows("messages send", "al", "My name is Al.")
    [call] = script.rows("approvals list")
    assert call["tool_call"]["name"] == "memory_insert"
    assert script.rows("approvals answer", "al", "--approve")
    assert script.row("agents delete", "al", "--yes")["deleted"] == call["agent_id"]


def memory(script: Script, cli: CommandLine, running: MeshThread) -> None:
    block = script.row("blocks create", "rules", "Be brief.")
    assert script.row("blocks attach", block["id"], "jo")["attached"] == block["id"]
    assert script.row("blocks update", block["id"], "--value", "Be kind.")["value"] == "Be kind."
    assert [row["revision"] for row in script.rows("blocks history", block["id"])] == ["2", "1"]
    assert script.row("blocks undo", block["id"])["value"] == "Be brief."
    assert script.row("blocks show", block["id"])["label"] == "rules"
    assert "rules" in {row["label"] for row in script.rows("blocks list", "--agent", "jo")}
    assert script.row("blocks detach", "rules", "jo")["detached"] == block["id"]
    assert script.row("blocks delete", block["id"], "--yes") == {"deleted": block["id"]}
    assert script.row("memory show", "jo")["blocks"]
    edited = script.row("memory edit", "jo", "human", "--append", "Likes cake.")
    assert any("Likes cake." in each.get("value", "") for each in edited["blocks"])

    agent = running.run(cli.client.agents.find("jo"))
    fact = running.run(cli.client.facts.create("Jo lives in Rome.", agent_id=agent.id)).fact
    scope = episodes_pb2.MemoryScope(agent_id=agent.id)
    episode = running.run(cli.client.episodes.commit(scope, "Jo said where she lives.")).episode
    assert [row["id"] for row in script.rows("memory facts", "jo")] == [fact.id]
    assert [row["id"] for row in script.rows("facts list", "--agent", "jo")] == [fact.id]
    assert script.row("facts show", fact.id)["text"] == "Jo lives in Rome."
    assert script.rows("facts search", "jo", "Where does Jo live?")
    corrected = script.row("memory correct", fact.id, "Jo lives in Oslo.")
    assert [row["id"] for row in script.rows("memory history", fact.id)] == [fact.id, corrected["id"]]
    assert script.row("memory forget", corrected["id"])
    restored = script.row("memory restore", corrected["id"])
    assert script.rows("memory extract", "jo", code=1) == []  # no model of this mesh can extract facts
    for text in ("Jo's password is hunter2hunter2.", "Jo's password is hunter2hunter2!"):
        running.run(cli.client.facts.create(text, agent_id=agent.id))
    [finding, *_] = script.rows("memory audit", "jo")
    applied = script.row("memory audit", "jo", "--apply", finding["id"], "--yes")
    assert applied == {"applied": finding["id"], "action": finding["action"]}
    assert script.row("facts delete", restored["id"], "-y")["deleted"]
    assert [row["id"] for row in script.rows("episodes list", "--agent", "jo")] == [episode.id]
    assert script.row("episodes show", episode.id)["id"] == episode.id
    assert script.rows("episodes search", "jo", "lives")
    assert script.row("episodes delete", episode.id, "-y") == {"deleted": episode.id}


def archives_and_files(script: Script, tmp_path: Path) -> None:
    archive = script.row("archives create", "notes", "--agent", "jo")["id"]
    passage = script.row("passages create", "The launch is on Friday.", "--agent", "jo")["id"]
    assert [row["id"] for row in script.rows("passages list", "--agent", "jo")] == [passage]
    assert script.row("passages show", passage)["text"] == "The launch is on Friday."
    assert script.rows("passages search", "launch", "--agent", "jo")[0]["passage"]["id"] == passage
    assert [row["id"] for row in script.rows("archives list", "--agent", "jo")] == [archive]
    assert script.row("archives show", archive)["name"] == "notes"
    changed = script.row("archives update", archive, "--embedder", "mnemesh/wordllama-256", "--wait")
    assert (changed["embedder"], "reembedding" in changed) == ("mnemesh/wordllama-256", False)
    assert script.row("passages delete", passage, "-y") == {"deleted": passage}
    assert script.row("archives detach", archive, "jo")["detached"] == archive
    assert script.row("archives attach", archive, "jo")["attached"] == archive
    assert script.row("archives delete", archive, "-y") == {"deleted": archive}

    directory = tmp_path / "docs"
    directory.mkdir()
    (directory / "one.md").write_text("The first line.\nThe launch is on Friday.\n")
    folder = script.row("folders create", "docs")
    assert script.row("folders show", "docs")["id"] == folder["id"]
    assert script.row("folders update", "docs", "--description", "Texts.")["description"] == "Texts."
    assert [row["name"] for row in script.rows("folders list")] == ["docs"]
    [file] = script.rows("files upload", str(directory), "--folder", "docs", "--wait")
    assert file["outcome"] == "created"
    (directory / "two.md").write_text("Another text.\n")
    [watched] = script.rows("watch", str(directory), "--folder", "docs", "--once", "--wait")
    assert (watched["outcome"], watched["name"]) == ("created", "two.md")
    assert script.row("folders attach", "docs", "jo")["agent_id"]
    assert {row["name"] for row in script.rows("files list", "--folder", "docs")} == {"one.md", "two.md"}
    assert script.row("files show", "docs/one.md")["id"] == file["id"]
    assert script.row("files text", "docs/one.md", "--lines", "1-1")["text"] == "The first line."
    target = script.row("files download", "docs/one.md", str(tmp_path))["path"]
    assert Path(target).read_text().startswith("The first")
    assert script.rows("files download", "docs/one.md", "-", code=2) == []
    assert script.row("files retry", "docs/one.md")["id"] == file["id"]
    assert script.rows("files search", "launch", "--agent", "jo")
    assert script.rows("files grep", "launch", "--agent", "jo")[0]["line"] == 2
    assert script.rows("files import", "http://files.invalid/three.md", "--folder", "docs")[0]["outcome"] == "created"
    assert script.row("files delete", "docs/one.md", "-y") == {"deleted": file["id"]}
    assert script.row("folders detach", "docs", "jo")["folder_id"] == folder["id"]
    assert script.row("folders delete", "docs", "-y") == {"deleted": folder["id"]}


def tools(script: Script, tmp_path: Path) -> None:
    source = tmp_path / "add.py"
    source.write_text(ADD)
    assert script.row("tools schema", str(source))["parameters"]["required"] == ["left"]
    tool = script.row("tools create", str(source))["id"]
    assert script.row("tools upsert", str(source))["id"] == tool
    updated = script.row("tools update", "add_numbers", "--tag", "sums", "--approval", "--seconds", "20")
    assert (updated["tags"], updated["default_requires_approval"], updated["timeout_seconds"]) == (["sums"], True, 20)
    assert script.rows("tools update", "add_numbers", code=2) == []
    assert [row["id"] for row in script.rows("tools list")] == [tool]
    assert script.row("tools show", tool)["name"] == "add_numbers"
    assert script.rows("tools search", "add numbers")[0]["id"] == tool
    assert script.row("tools run", "add_numbers", '{"left": 2}')["result"] == "3"
    script.row("tools attach", "add_numbers", "jo")
    assert "add_numbers" in {each["name"] for each in script.row("agents show", "jo")["tools"]}
    script.row("tools detach", tool, "jo")
    assert "add_numbers" not in {each["name"] for each in script.row("agents show", "jo")["tools"]}
    assert script.row("tools delete", tool, "--yes") == {"deleted": tool}


def mcp_servers(script: Script, running: MeshThread) -> None:
    servers = protected()
    remote = running.run(servers.__aenter__())

    def approve(*_: Any, **__: Any) -> str:
        url = json.loads(sys.stdout.getvalue())["authorization_url"]  # type: ignore[attr-defined]
        return f"http://127.0.0.1:8765/callback?{urlencode(running.run(remote.approve(url)))}"

    try:
        server = script.row("mcp-servers create", "--oauth", "protected", remote.url)["id"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(typer, "prompt", approve)
            started, authorized = script.rows("mcp-servers authorize", "protected")
        assert ("authorization_url" in started, authorized["tool_count"]) == (True, 2)
        assert script.row("mcp-servers refresh", "protected")["mcp_server"]["id"] == server
        assert len(script.rows("mcp-servers tools", "protected")) == 2
        assert script.row("mcp-servers update", "protected", "--name", "safe")["updated"] == server
        assert [row["name"] for row in script.rows("mcp-servers list")] == ["safe"]
        assert script.row("mcp-servers show", "safe")["id"] == server
        assert script.row("mcp-servers delete", "safe", "--yes") == {"deleted": server}
    finally:
        running.run(servers.__aexit__(None, None, None))


def groups_and_people(script: Script) -> None:
    script.row("agents create", "kim", "--sleeptime")
    group = script.row("groups create", "jo", "kim", "-d", "duo")
    assert script.row("groups show", "duo")["id"] == group["id"]
    assert script.row("groups update", "duo", "--max-turns", "1")["id"] == group["id"]
    assert group["id"] in {row["id"] for row in script.rows("groups list")}
    assert {row["agent_name"] for row in script.rows("groups send", "duo", "Hello.") if "agent_name" in row}
    assert script.rows("groups messages", "duo")
    assert isinstance(script.row("groups cancel", "duo"), dict)
    assert script.row("groups reset", "duo", "-y") == {"reset": group["id"]}
    assert script.row("groups delete", "duo", "-y") == {"deleted": group["id"]}

    script.rows("messages send", "kim", "My name is Kim.")
    assert "Kim" in script.row("sleep", "kim", "--dry-run")["transcript"]
    [run] = script.rows("sleep", "kim")
    assert run["status"] == "RUN_STATUS_COMPLETED"

    person = script.row("identities upsert", "p-1", "Pat")["id"]
    assert script.row("identities show", person)["name"] == "Pat"
    assert script.row("identities attach", person, "jo")["attached"] == person
    assert [row["id"] for row in script.rows("identities list", "--agent", "jo")] == [person]
    assert script.row("identities detach", person, "jo")["detached"] == person
    block = script.row("blocks create", "about", "Pat.")["id"]
    assert script.row("identities attach", person, "--block", block)["block_id"] == block
    assert script.rows("identities attach", person, code=2) == []
    assert script.row("identities erase", person, "--yes")
    other = script.row("identities upsert", "p-2", "Sam")["id"]
    assert script.row("identities delete", other, "-y") == {"deleted": other}


def moves(script: Script, tmp_path: Path) -> None:
    exported = script.row("export", "jo", "--dir", str(tmp_path / "memory"))
    assert exported["records"] > 0
    assert Path(exported["path"]).is_dir()
    letta = script.row("export", "jo", "--format", "letta", "--dir", str(tmp_path))
    one = script.row("export", "jo", "--file", str(tmp_path / "jo.mnemesh"))
    assert one["records"] == exported["records"]
    assert script.row("import", exported["path"], "--agent", "jo")["agent_id"] == exported["agent_id"]
    assert script.row("import", letta["path"])["name"] == "jo (2)"
    script.row("agents delete", exported["agent_id"], "--yes")
    assert script.row("import", one["path"])["agent"]["name"] == "jo"
    assert script.rows("import", "letta", code=1) == []


def mesh(script: Script, running: MeshThread, tmp_path: Path) -> None:
    async def provider_url() -> str:
        return (await fake.__aenter__()).base_url

    fake = FakeOpenAI(models=["small"])
    try:
        key = tmp_path / "key"
        key.write_text("sk-test\n")
        url = running.run(provider_url())
        created = script.row(
            "providers create", "acme", "--type", "openai_compatible", "--base-url", url, "--key-file", str(key)
        )
        assert script.row("providers show", "acme")["id"] == created["id"]
        assert [row["model"] for row in script.rows("providers check", "acme")] == ["small"]
        assert script.row("providers update", "acme", "--disable")["disabled"]
        script.row("providers update", "acme", "--enable")
        assert script.row("providers refresh", "acme")
        assert "acme" in {row["name"] for row in script.rows("providers list")}
        assert script.row("providers delete", "acme", "-y") == {"deleted": created["id"]}
    finally:
        running.run(fake.__aexit__(None, None, None))
    assert "mnemesh/rehearsal" in {row["handle"] for row in script.rows("models list")}
    assert script.row("models show", "mnemesh/rehearsal")["handle"] == "mnemesh/rehearsal"
    [prompt, *_] = script.rows("prompts list")
    assert script.row("prompts show", prompt["key"])["text"]

    assert {row["service"] for row in script.rows("status", code=1)} >= {"orchestrator", "blocks"}
    agent = script.row("agents create", "in-time")["id"]
    schedule = script.row("schedules create", agent, "Hello.", "--cron", "0 9 1 1 *")["id"]
    assert [row["id"] for row in script.rows("schedules list")] == [schedule]
    for command in ("schedules show", "schedules pause", "schedules resume"):
        assert script.row(command, schedule)["id"] == schedule
    assert script.row("schedules delete", schedule, "-y") == {"deleted": schedule}
    webhook = script.row("webhooks create", "http://127.0.0.1:1/", "--event", "run.failed")["id"]
    assert [row["id"] for row in script.rows("webhooks list")] == [webhook]
    for command in ("webhooks show", "webhooks disable", "webhooks enable"):
        assert script.row(command, webhook)["id"] == webhook
    sent = script.row("webhooks test", webhook)
    assert sent in script.rows("webhooks deliveries", webhook)
    assert script.row("webhooks delete", webhook, "-y") == {"deleted": webhook}
    budget = script.row("budgets set", "--requests", "1000")["id"]
    assert [row["id"] for row in script.rows("budgets list")] == [budget]
    assert script.row("budgets delete", budget, "-y") == {"deleted": budget}

    assert {row["service"] for row in script.rows("audit", "--since", "1h")} >= {"orchestrator", "blocks", "tools"}
    assert script.row("top", "--once")["active_runs"] == 0
    assert script.row("whoami")["role"] == "CALLER_ROLE_SERVICE"
    assert {row["name"] for row in script.rows("version", code=1)} >= {"client", "blocks"}
    assert {row["subject"] for row in script.rows("doctor", "--data-dir", str(tmp_path), code=1)} >= {"python", "model"}
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "blocks.log").write_text("started\n")
    assert script.rows("logs", "--data-dir", str(tmp_path)) == [{"service": "blocks", "line": "started"}]
    assert script.row("down", "--data-dir", str(tmp_path)) == {"data_dir": str(tmp_path), "stopped_pid": None}
    assert len(script.row("certs create", str(tmp_path / "certs"))["certificates"]) > 1
    (tmp_path / "keys").write_text("0123456789abcdef" * 4)
    token = script.row("tokens create", "--key-file", str(tmp_path / "keys"))["token"]
    assert script.row("tokens revoke", token, "--key-file", str(tmp_path / "keys"))["kind"] == "token"

    assert script.row("profiles set", "team", "--address", "mesh.example.org:50050")["name"] == "team"
    assert [row["name"] for row in script.rows("profiles list")] == ["team"]
    assert script.row("profiles show", "team")["target"] == "mesh.example.org:50050"
    assert script.row("profiles use", "team") == {"profile": "team"}
    assert script.row("profiles delete", "team") == {"deleted": "team"}
