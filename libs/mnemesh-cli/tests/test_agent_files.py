"""The files of agents, through the client and the command line, over a whole mesh."""

import io
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mnemesh.agents.v1 import runs_pb2
from mnemesh_cli.chat.render import LiveRenderer, show_sources
from mnemesh_client import Agent, FileProcessingFailed, NotFound, window
from mnemesh_client.inputs import text_part
from mnemesh_testkit.mesh.in_process import MeshThread
from rich.console import Console

from .command_line import CommandLine

T = TypeVar("T")
TEXT = "".join(f"Line {number} of the manual.\n" for number in range(1, 31)) + "The harbour opens at nine.\n"


class Reader:
    """An agent that holds a folder with one processed file, "<folder>/manual.md"."""

    def __init__(self, running: MeshThread, agent: Agent, folder: str) -> None:
        self._running = running
        self.agent = agent
        self.folder = folder
        self.file = f"{folder}/manual.md"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the thread of the mesh."""
        return self._running.run(work)


@pytest.fixture
def reader(cli: CommandLine, running: MeshThread, tmp_path: Path, request: pytest.FixtureRequest) -> Reader:
    """An agent with a folder, both with the name of the test."""
    name = request.node.name.removeprefix("test_")
    (tmp_path / "manual.md").write_text(TEXT)
    uploaded = cli.run("files", "upload", str(tmp_path / "manual.md"), "--folder", name, "--wait")
    assert uploaded[:2] == (0, f"created {name}/manual.md\n"), uploaded
    agent = cli.agent(name)
    assert cli.run("folders", "attach", name, agent.id) == (0, f"attached {name} to {name}\n", "")
    return Reader(running, agent, name)


def test_windows_are_opened_and_closed(reader: Reader) -> None:
    files = reader.agent.files

    opened = reader.run(files.open(window(reader.file, 9, 2)))
    assert (opened.opened[0].file.view.start_line, opened.opened[0].file.view.end_line) == (10, 11)
    assert "Line 10 of the manual." in opened.opened[0].file.visible_content
    (held,) = reader.run(_collected(files.list(is_open=True, include_content=True)))
    assert (held.name, "Line 11" in held.visible_content) == (reader.file, True)
    assert [folder.name for folder in reader.run(_collected(files.folders()))] == [reader.folder]
    sections = reader.run(files.directories())
    assert sections.directories[0].files[0].is_open
    assert reader.run(files.directories_since(sections.revision)) is None
    assert reader.run(files.close()) == [reader.file]
    assert reader.run(files.close("manual.md")) == []
    with pytest.raises(NotFound):
        reader.run(files.open("none.md"))


def test_limits_of_an_agent_close_its_least_recent_files(reader: Reader, cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "second.md").write_text("Second.\n")
    cli.run("files", "upload", str(tmp_path / "second.md"), "--folder", reader.folder, "--wait")
    reader.run(reader.agent.files.open(reader.file, "second.md"))

    limited = reader.run(reader.agent.files.set_limits(1, 5_000))

    assert (limited.limits.max_files_open, len(limited.evicted)) == (1, 1)


def test_files_of_an_agent_are_searched(reader: Reader, cli: CommandLine) -> None:
    options = ("--agent", reader.agent.id)

    code, out, _ = cli.run("files", "grep", "HARBOUR", "-C", "1", *options)
    assert (code, out.splitlines()) == (
        0,
        [f"{reader.file}-30- Line 30 of the manual.", f"{reader.file}:31: The harbour opens at nine."],
    )
    code, out, _ = cli.run("files", "grep", "line [12]\\d of", "--json", *options)
    assert [json.loads(line)["line"] for line in out.splitlines()] == list(range(10, 30))
    code, out, err = cli.run("files", "grep", "line", "--limit", "25", *options)
    assert (code, len(out.splitlines()), "25 of 30 matches" in err) == (0, 25, True)
    assert cli.run("files", "grep", "zeppelin", *options)[:2] == (1, "")
    code, out, _ = cli.run("files", "search", "When does the harbour open?", *options)
    assert code == 0
    assert f"{reader.file}:" in out.splitlines()[0]
    assert "The harbour opens at nine." in out
    code, out, err = cli.run("files", "grep", "(", *options)
    assert (code, "pattern" in err) == (1, True)


def test_text_of_a_file_is_printed_with_line_numbers(reader: Reader, cli: CommandLine) -> None:
    assert cli.run("files", "text", reader.file)[1] == TEXT
    assert cli.run("files", "text", reader.file, "--lines", "30-", "-n")[1] == (
        "30: Line 30 of the manual.\n31: The harbour opens at nine.\n"
    )
    assert cli.run("files", "text", reader.file, "--lines", "2")[1] == "Line 2 of the manual.\n"


def test_citations_are_resolved_and_shown_as_sources(reader: Reader) -> None:
    answer = f"At nine [{reader.file}:31], as it says [{reader.file}:30-31][{reader.file}:31] [no/file.md:1]."

    first, second, _, missing = reader.run(reader.agent.files.citations(answer))
    assert (first.quote, answer[first.start : first.end]) == ("The harbour opens at nine.", f"[{reader.file}:31]")
    assert (second.start_line, second.end_line, missing.HasField("file_id")) == (30, 31, False)

    screen = io.StringIO()
    event = runs_pb2.RunEvent()
    event.message.assistant.content.append(text_part(answer))
    reader.run(show_sources(LiveRenderer(Console(file=screen, width=120)), reader.agent.files, event))
    assert screen.getvalue().splitlines() == [
        "sources:",
        f"  {reader.file}, line 31",
        f"  {reader.file}, lines 30–31",
        "  no/file.md, line 1 (not found)",
    ]


def test_file_that_cannot_be_processed_is_an_error(reader: Reader, cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing")

    code, out, err = cli.run("files", "upload", str(tmp_path / "broken.pdf"), "--folder", reader.folder, "--wait")

    assert (code, out) == (1, f"created {reader.folder}/broken.pdf\n")
    assert f"{reader.folder}/broken.pdf cannot be processed:" in err
    file = reader.run(cli.client.files.find(f"{reader.folder}/broken.pdf"))
    with pytest.raises(FileProcessingFailed, match="cannot be processed") as failure:
        reader.run(cli.client.files.wait(file.id))
    assert failure.value.file.id == file.id
    _, listed, _ = cli.run("files", "list", "--folder", reader.folder, "--status", "error", "--json")
    assert [json.loads(line)["id"] for line in listed.splitlines()] == [file.id]
    assert cli.run("files", "retry", file.id)[0] == 0


def test_detached_folder_is_kept(reader: Reader, cli: CommandLine) -> None:
    assert reader.agent.id in cli.run("folders", "show", reader.folder)[1]

    assert cli.run("folders", "detach", reader.folder, reader.agent.id)[0] == 0

    assert reader.run(_collected(reader.agent.files.list())) == []
    assert reader.agent.id not in cli.run("folders", "show", reader.folder)[1]


async def _collected(rows: Any) -> list[Any]:
    return [row async for row in rows]
