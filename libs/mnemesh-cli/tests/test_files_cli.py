"""The commands for folders and files, over a whole mesh."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from mnemesh_cli.commands import files
from mnemesh_testkit.mesh.in_process import MeshThread

from .command_line import CommandLine
from .terminal import Terminal


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a few files."""
    root = tmp_path / "docs"
    (root / "guide").mkdir(parents=True)
    (root / "readme.md").write_text("# Readme\n")
    (root / "guide" / "intro.md").write_text("# Intro\nThe harbour opens at nine.\n")
    (root / "debug.log").write_text("x")
    (root / ".gitignore").write_text("*.log\n")
    return root


def lines(out: str) -> list[str]:
    return sorted(out.splitlines())


def test_folders_are_created_listed_shown_updated_and_deleted(cli: CommandLine) -> None:
    code, created, err = cli.run("folders", "create", "reports-1", "-d", "Annual reports.", "--chunk-size", "200")
    assert (code, err) == (0, "")
    folder_id = created.strip()

    _, listed, _ = cli.run("folders", "list")
    assert ["reports-1", "0", "0", "B", "Annual", "reports."] in [line.split() for line in listed.splitlines()]
    _, as_json, _ = cli.run("folders", "show", "reports-1", "--json")
    shown = json.loads(as_json)
    assert (shown["id"], shown["chunk_size"], shown["agent_ids"]) == (folder_id, 200, [])
    _, updated, _ = cli.run("folders", "update", folder_id, "--name", "reports-2", "-d", "", "--instructions", "Quote.")
    assert "reports-2" in updated
    assert "Annual" not in updated
    assert "Quote." in updated
    assert cli.run("folders", "delete", "reports-2", "--yes") == (0, f"deleted {folder_id}\n", "")
    code, _, err = cli.run("folders", "show", "reports-2")
    assert (code, "There is no folder 'reports-2'" in err) == (3, True)


def test_directory_is_uploaded_and_unchanged_files_are_not_sent_again(cli: CommandLine, directory: Path) -> None:
    code, out, err = cli.run("files", "upload", str(directory), "--folder", "docs-1")
    assert (code, lines(out)) == (0, ["created docs-1/guide--intro.md", "created docs-1/readme.md"])
    assert "created the folder docs-1" in err
    assert "2 files: 2 created" in err

    (directory / "readme.md").write_text("# Changed\n")
    code, out, err = cli.run("files", "upload", str(directory), "-f", "docs-1")
    assert (code, lines(out)) == (1, ["unchanged docs-1/guide--intro.md"])
    assert f"{directory}/readme.md: A file named readme.md already exists in the folder." in err
    code, out, _ = cli.run("files", "upload", str(directory), "-f", "docs-1", "--on-duplicate", "replace", "--json")
    outcomes = {row["name"]: row["outcome"] for row in map(json.loads, out.splitlines())}
    assert (code, outcomes) == (0, {"guide--intro.md": "unchanged", "readme.md": "replaced"})


def test_files_are_listed_shown_downloaded_and_deleted(cli: CommandLine, directory: Path, tmp_path: Path) -> None:
    cli.run("files", "upload", str(directory), "--folder", "docs-2")

    _, listed, _ = cli.run("files", "list", "--folder", "docs-2")
    rows = [line.split() for line in listed.splitlines()[1:]]
    assert sorted(row[0] for row in rows) == ["docs-2/guide--intro.md", "docs-2/readme.md"]
    _, shown, _ = cli.run("files", "show", "docs-2/readme.md")
    fields = [line.replace(":", "", 1) for line in shown.splitlines()]
    assert {"name docs-2/readme.md", "path readme.md", "size 9 B (9 bytes)"} <= set(fields)
    target = tmp_path / "copy.md"
    assert cli.run("files", "download", "docs-2/readme.md", str(target)) == (0, f"{target}\n", "")
    assert target.read_text() == "# Readme\n"
    code, _, err = cli.run("files", "download", "docs-2/readme.md", str(target))
    assert (code, "exists" in err) == (1, True)
    code, out, _ = cli.run("files", "download", "docs-2/readme.md", str(tmp_path), "--force")
    assert (tmp_path / "readme.md").read_text() == "# Readme\n"
    code, out, _ = cli.run("files", "delete", "docs-2/readme.md", "docs-2/guide--intro.md", "-y")
    assert (code, lines(out)) == (0, ["deleted docs-2/guide--intro.md", "deleted docs-2/readme.md"])
    code, _, err = cli.run("files", "list", "--folder", "docs-2")
    assert (code, "There are no such files" in err) == (0, True)


def test_table_of_files_fits_eighty_columns(cli: CommandLine, directory: Path) -> None:
    long_name = "a-name-that-is-" + "very-" * 20 + "long.md"
    (directory / long_name).write_text("x")
    cli.run("files", "upload", str(directory / long_name), "--folder", "a-folder-with-a-long-name", "--wait")

    listed = cli.lines_of_terminal("files", "list", "--folder", "a-folder-with-a-long-name")
    folders = cli.lines_of_terminal("folders", "list")

    assert max(map(len, [*listed, *folders])) <= 80
    assert listed[1].startswith("a-folder-with-a-long-name/a-name")
    assert "…  completed  " in listed[1]
    assert long_name in cli.run("files", "list", "--folder", "a-folder-with-a-long-name")[1]


def test_bad_arguments_are_errors_that_say_what_to_do(cli: CommandLine, directory: Path) -> None:
    for arguments, code, problem in (
        (("files", "upload", "none.md", "-f", "docs-3"), 1, "none.md is not a file or a directory"),
        (("files", "upload", str(directory), "-f", "docs-3", "--name", "x"), 2, "Only a single file"),
        (("files", "upload", "-", "-f", "docs-3"), 2, "Name the file that is read from stdin"),
        (("files", "upload", str(directory), "-f", "docs-3", "--ignore", "!"), 1, "'!' is not a rule"),
        (("files", "upload", str(directory), "-f", "source-x"), 1, "folder"),
        (("files", "import", "ftp://example.com/a", "-f", "docs-3"), 2, "http:// or https://"),
        (("files", "show", "none.md"), 3, "There is no file 'none.md'"),
        (("files", "text", "none.md", "--lines", "9-3"), 2, "the last one is not before it"),
        (("folders", "update", "docs-3"), 2, "Name at least one change"),
        (("watch", str(directory / "readme.md")), 2, "is a file"),
        (("watch", str(directory), "--wait"), 2, "only with --once"),
    ):
        exit_code, _, err = cli.run(*arguments)
        assert (exit_code, problem in " ".join(err.replace("│", " ").split())) == (code, True), (arguments, err)


def test_stdin_is_uploaded_under_a_name(cli: CommandLine) -> None:
    code, out, _ = cli.run("files", "upload", "-", "--name", "piped.txt", "-f", "docs-4", stdin="From a pipe.")

    assert (code, out) == (0, "created docs-4/piped.txt\n")


def test_watch_compares_once(cli: CommandLine, directory: Path) -> None:
    once = ("watch", str(directory), "-f", "docs-5", "--once", "--settle", "0", "--delete")

    code, out, err = cli.run(*once)
    assert (code, lines(out)) == (0, ["created docs-5/guide--intro.md", "created docs-5/readme.md"])
    assert "2 files compared, 2 changes" in err
    (directory / "readme.md").unlink()
    (directory / "guide" / "intro.md").rename(directory / "intro.md")
    assert lines(cli.run(*once)[1]) == ["deleted docs-5/readme.md", "renamed docs-5/intro.md"]
    code, out, err = cli.run(*once)
    assert (code, out, "1 file compared, 0 changes" in err) == (0, "", True)


@pytest.mark.full
async def test_watch_ends_with_ctrl_c(cli: CommandLine, directory: Path) -> None:
    terminal = Terminal(cli.environment(), str(directory), "-f", "docs-6", "--settle", "0", command="watch")
    await terminal.open()
    try:
        await terminal.see("created docs-6/readme.md")
        await asyncio.to_thread((directory / "new.md").write_text, "new")
        await terminal.see("created docs-6/new.md")
        terminal.interrupt(signal.SIGINT)
        assert await terminal.wait() == 0
    finally:
        await terminal.close()


def test_upload_waits_for_a_service_that_was_killed_before_the_first_byte(
    cli: CommandLine, running: MeshThread, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def restarted(text: str) -> None:
        said.append(text)
        if "does not answer" in text:
            running.run(running.mesh.start("files"))

    monkeypatch.setattr(files, "notice", restarted)
    running.run(running.mesh.stop("files"))
    code, out, err = cli.run("files", "upload", str(directory / "readme.md"), "-f", "after-a-kill")
    assert (code, out, err) == (0, "created after-a-kill/readme.md\n", "")
    assert said[0] == "the files service does not answer; waiting for up to 60 seconds"
