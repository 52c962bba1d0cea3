"""Moving from Letta by commands: a database of one and of several organizations, and agent files."""

import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import chdir, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mnemesh_kit.ids import derive_id
from mnemesh_testkit.mesh.in_process import REHEARSAL, MeshThread
from mnemesh_testkit.timeouts import scaled

from .command_line import CommandLine
from .terminal import INTERRUPTIBLE

DATA = Path(__file__).parents[3] / "tests" / "letta" / "data"
OTHER = derive_id("org", "other")
MODEL = ("--model", REHEARSAL)
INTERRUPTIONS = [(signal.SIGINT, 0.15), (signal.SIGTERM, 0.0)]
"""Signals, and the seconds between the start of the import of an agent and the signal."""


@dataclass(frozen=True)
class Shell:
    """Runs the command in a directory."""

    cli: CommandLine
    directory: Path

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """Returns stdout and stderr of a command, which must end with a code."""
        with chdir(self.directory):
            ended, out, err = self.cli.run(*map(str, arguments))
        assert ended == code, err
        return out, err

    def interrupt(self, number: signal.Signals, seconds: float, *arguments: str) -> tuple[int, str]:
        """Sends a signal so many seconds after an agent began. Returns the exit code and stderr of the migration."""
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTIBLE, "import", "letta", *MODEL, *arguments],
            env={**os.environ, **self.cli.environment()},
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            began = process.stderr.readline()
            time.sleep(seconds)
            process.send_signal(number)
            try:
                return process.wait(scaled(20)), began + process.stderr.read()
            finally:
                process.kill()

    def report(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        """Returns the report of a migration."""
        report: dict[str, Any] = json.loads(self.run("import", "letta", "--json", *MODEL, *arguments, code=code)[0])
        return report


@pytest.fixture
def shell(cli: CommandLine, tmp_path: Path) -> Shell:
    return Shell(cli, tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The database of a Letta server."""
    path = tmp_path / "letta.db"
    path.write_bytes(gzip.decompress((DATA / "letta-0.16.7.db.gz").read_bytes()))
    return path


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def names(running: MeshThread) -> list[str]:
    async def listed() -> list[str]:
        return sorted([agent.name async for agent in running.mesh.client.agents.list()])

    return running.run(listed())


def add_organization(path: Path, name: str = "other", *, messages: int = 1) -> str:
    """Adds an organization with one agent, its block, and messages. Returns its id."""
    organization, agent, block = derive_id("org", name), derive_id("agent", name), derive_id("block", name)
    ids = [derive_id("message", name, str(number)) for number in range(messages)]
    with closing(sqlite3.connect(path)) as connection, connection:
        copy(connection, "organizations", "1", id=organization, name=name.capitalize())
        copy(
            connection,
            "agents",
            "name = 'Clerk'",
            id=agent,
            organization_id=organization,
            name="Stranger",
            message_ids=json.dumps(ids[:1]),
        )
        copy(connection, "block", "label = 'human'", id=block, organization_id=organization, value="Someone else.")
        copy(connection, "blocks_agents", "block_label = 'human'", agent_id=agent, block_id=block)
        kept = {"run_id": None, "step_id": None, "otid": None, "conversation_id": None, "organization_id": organization}
        for number, id_ in enumerate(ids, 100_000):
            copy(connection, "messages", "role = 'system'", id=id_, agent_id=agent, sequence_id=number, **kept)
    return organization


def copy(connection: sqlite3.Connection, table: str, where: str, **changes: object) -> None:
    """Copies one row of a table with changes."""
    cursor = connection.execute(f"SELECT * FROM {table} WHERE {where} LIMIT 1")
    row = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True)) | changes
    marks = ", ".join("?" for _ in row)
    columns = ", ".join(f'"{name}"' for name in row)
    connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", list(row.values()))


def test_a_database_is_migrated_organization_by_organization(shell: Shell, database: Path, running: MeshThread) -> None:
    add_organization(database)
    refused, message = shell.run("import", "letta", "--database-url", url(database), *MODEL, code=1)
    assert refused == ""
    assert (OTHER in message, "--organization" in message, names(running)) == (True, True, [])

    other = shell.report("--database-url", url(database), "--organization", OTHER)
    assert names(running) == ["Stranger"]
    assert [other["counts"][name]["created"] for name in ("agents", "blocks", "messages")] == [1, 1, 1]

    first = "org-00000000-0000-4000-8000-000000000000"
    table, _ = shell.run("import", "letta", "--database-url", url(database), "--organization", first, *MODEL)
    assert "messages                  60        60         0         0" in table
    assert len(names(running)) == 5
    again = shell.report("--database-url", url(database), "--organization", first)
    assert {name for name, row in again["counts"].items() if row["created"]} == set()
    assert again["skipped"] == []


@pytest.mark.full
def test_a_migration_is_interrupted_by_signals(shell: Shell, database: Path, is_full: bool) -> None:
    organization = add_organization(database, "patient", messages=6000)
    arguments = ("--database-url", url(database), "--organization", organization)
    interruptions = INTERRUPTIONS if is_full else INTERRUPTIONS[1:]
    ends = [shell.interrupt(number, seconds, *arguments) for number, seconds in interruptions]
    assert [code for code, _ in ends] == [128 + number for number, _ in interruptions]
    assert all("run the command again" in message and "Traceback" not in message for _, message in ends), ends

    report = shell.report(*arguments)

    counts = {name: (row["letta"], row["created"] + row["existing"]) for name, row in report["counts"].items()}
    assert {name: row for name, row in counts.items() if row[0] != row[1]} == {}
    assert counts["messages"] == (6000, 6000)


def test_a_migration_names_what_is_wrong(shell: Shell, database: Path, tmp_path: Path) -> None:
    cases: list[tuple[tuple[object, ...], str]] = [
        ((), "--database-url"),
        (("--database-url", url(tmp_path / "none.db")), "no database file"),
        (("--database-url", url(database), "--organization", "org-1"), "org-1"),
        (("--database-url", url(database), "--model", "openai/gpt-9"), "openai/gpt-9"),
    ]
    for arguments, words in cases:
        _, message = shell.run("import", "letta", *arguments, code=1)
        assert words in message, message


def test_an_agent_file_is_imported_exported_and_imported_again(
    shell: Shell, running: MeshThread, tmp_path: Path
) -> None:
    before = names(running)
    out, _ = shell.run("import", DATA / "sleeper.af", *MODEL)
    ids = dict(line.rsplit(": ", 1) for line in out.splitlines())
    assert len(ids) >= 1
    assert shell.run("import", DATA / "sleeper.af", *MODEL)[0] == out, "the same file is the same agents"
    assert len(names(running)) == len(before) + len(ids)

    agent_id = next(iter(ids.values()))
    shown, _ = shell.run("export", agent_id, "--format", "letta", "--dir", tmp_path / "backup")
    path = tmp_path / "backup" / f"{agent_id}.af"
    assert str(path) in shown
    file = json.loads(path.read_text())
    given = json.loads((DATA / "sleeper.af").read_text())
    assert file["agents"][0]["name"].partition(" (")[0] in {agent["name"] for agent in given["agents"]}
    copied, _ = shell.run("import", path, *MODEL)
    assert copied.rsplit(": ", 1)[1].strip() != agent_id

    path.write_text("{")
    assert "JSON" in shell.run("import", path, code=1)[1]
