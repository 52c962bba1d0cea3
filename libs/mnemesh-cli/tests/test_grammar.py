"""The grammar of the command line: nouns and verbs, options anywhere, JSON, exit codes, profiles."""

import json
import subprocess
import sys
from collections import Counter
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from mnemesh_cli import options
from mnemesh_cli.display.terminal import is_json
from mnemesh_cli.global_options import EXAMPLES, MeshGroup, connection_of
from mnemesh_cli.profiles import config_file
from mnemesh_testkit.timeouts import scaled

from .command_line import CommandLine
from .command_tree import all_commands

README = Path(__file__).parents[1] / "README.md"


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_command_takes_the_options_of_every_command() -> None:
    missing = {
        path: {"--target", "--profile", "--json", "--wide"} - {name for each in command.params for name in each.opts}
        for path, command in all_commands().items()
    }
    assert {path for path, names in missing.items() if names} == set()


def test_options_of_every_command_share_no_name_with_those_of_one() -> None:
    shared = {
        path: [name for name, times in Counter(each.name for each in command.params).items() if times > 1]
        for path, command in all_commands().items()
    }
    assert {path: names for path, names in shared.items() if names} == {}


def test_a_command_cannot_have_an_option_of_every_command() -> None:
    app = typer.Typer(cls=MeshGroup)
    app.callback()(lambda: None)

    @app.command("taken")
    def taken(value: Annotated[bool, typer.Option("--as-json/--json")] = False) -> None: ...

    group = typer.main.get_command(app)
    with pytest.raises(ValueError, match="of its own"):
        group.get_command(typer.Context(group), "taken")  # type: ignore[attr-defined]


def test_arguments_named_like_options_of_every_command_are_separate() -> None:
    app = typer.Typer(cls=MeshGroup)
    seen: list[tuple[object, ...]] = []

    @app.callback()
    def root(context: typer.Context) -> None:
        context.obj = connection_of(context)

    @app.command("show")
    def show(context: typer.Context, target: str, profile: str, json: str) -> None:
        line = context.obj
        seen.append((target, profile, json, line.target, line.profile_name, is_json.get()))

    app(["show", "a", "b", "c"], standalone_mode=False)
    line = ["--json", "show", "a", "b", "c", "--target", "host:1", "--profile", "team"]
    copy_context().run(app, line, standalone_mode=False)
    assert seen == [("a", "b", "c", None, None, False), ("a", "b", "c", "host:1", "team", True)]


def test_help_ends_with_examples_that_exist() -> None:
    commands = all_commands()
    assert set(EXAMPLES) - {""} <= {
        *(path.removeprefix("mnemesh ") for path in commands),
        *(path.split()[1] for path in commands),
    }
    for lines in EXAMPLES.values():
        for line in lines:
            words = line[line.index("mnemesh ") :].split()
            path = next((each for each in (words[:3], words[:2]) if " ".join(each) in commands), None)
            assert path is not None, line
            options = {name for parameter in commands[" ".join(path)].params for name in parameter.opts}
            assert {word for word in words if word.startswith("--")} <= options, line


def test_help_shows_examples(cli: CommandLine) -> None:
    for path, line in (
        ((), "mnemesh up --chat"),
        (("agents",), "mnemesh agents create ada"),
        (("search",), "--in passages"),
    ):
        code, out, _ = cli.run(*path, "--help")
        assert code == 0
        assert line in out[out.index("Examples:") :]


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--type", "sleepy", "letta_v1"), ("--prompt", "nope", "memgpt_v2"), ("--tool", "web_serch", "web_search")],
)
def test_an_unknown_name_is_answered_with_those_that_exist(
    cli: CommandLine, option: str, value: str, named: str
) -> None:
    code, _, err = cli.run("agents", "create", "unknown", option, value)
    assert code in (1, 3)
    assert value in err
    assert named in err


def test_a_line_imports_its_own_command_only() -> None:
    program = (
        "import sys\n"
        "from mnemesh_cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(*(name for name in sys.modules if name.startswith('mnemesh_cli.commands.')))\n"
    )
    line = [sys.executable, "-c", program, "tokens", "create", "--help"]
    imported = subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    assert imported == ["mnemesh_cli.commands.tokens"]


def test_the_readme_lists_every_command() -> None:
    text = README.read_text()
    listed = text[text.index("## Commands") : text.index("## Output")]
    nouns: dict[str, list[str]] = {}
    for path in all_commands():
        _, noun, *verb = path.split()
        nouns.setdefault(noun, []).extend(verb)
    expected = {f"| `{noun}` | {', '.join(sorted(verbs))} |" for noun, verbs in nouns.items() if verbs}
    assert expected == {line for line in listed.splitlines() if line.startswith("| `")}
    alone = {noun for noun, verbs in nouns.items() if not verbs}
    assert {noun for noun in alone if f"`mnemesh {noun}" not in listed} == set()


def test_a_turn_and_its_resources_can_be_listed_shown_and_changed(cli: CommandLine) -> None:
    agent_id = cli.run("agents", "create", "grace", "--human", "Likes tea.")[1].strip()
    code, out, err = cli.run("messages", "send", "grace", "My name is Grace.")
    assert (code, err) == (0, "")
    assert "Grace" in out

    assert json.loads(cli.run("--json", "agents", "show", agent_id)[1])["name"] == "grace"
    [run] = rows(cli.run("runs", "list", "--agent", "grace", "--json")[1])
    assert run["status"] == "RUN_STATUS_COMPLETED"
    steps = rows(cli.run("runs", "--json", "trace", run["id"])[1])
    assert len(steps) == run["step_count"]
    assert "request" in json.loads(cli.run("runs", "trace", run["id"], "--step", "1")[1])
    assert "Grace" in cli.run("runs", "logs", run["id"])[1]
    assert {row["role"] for row in rows(cli.run("messages", "list", "-a", "grace", "--json")[1])} >= {"ROLE_USER"}
    assert "Grace" in cli.run("messages", "search", "name Grace", "--agent", "grace")[1]

    [conversation] = rows(cli.run("conversations", "list", "--agent", "grace", "--json")[1])
    forked = cli.run("conversations", "fork", conversation["id"], "--summary", "another way")[1].strip()
    assert "another way" in cli.run("conversations", "show", forked)[1]
    assert cli.run("conversations", "delete", forked, "--yes")[0] == 0
    assert cli.run("conversations", "show", forked)[0] == 3


def test_blocks_are_created_changed_undone_and_shared(cli: CommandLine) -> None:
    first, second = cli.agent("ida"), cli.agent("ivy")
    block = cli.run("blocks", "create", "rules", "Be brief.", "--agent", "ida")[1].strip()
    cli.run("blocks", "attach", block, "ivy")
    cli.run("blocks", "update", block, "--value", "Be long.")

    assert [row["revision"] for row in rows(cli.run("blocks", "history", block, "--json")[1])] == ["2", "1"]
    assert "value: Be brief." in cli.run("blocks", "undo", block)[1]
    assert "Be brief." in cli.run("blocks", "list", "--agent", "ivy")[1]
    cli.run("blocks", "detach", "rules", "ivy")
    assert "rules" not in cli.run("blocks", "list", "--agent", second.id)[1]
    assert "rules" in cli.run("blocks", "list", "--agent", first.id)[1]
    assert cli.run("blocks", "delete", block, stdin="n\n")[0] == 1
    assert cli.run("blocks", "delete", block, "--yes")[0] == 0


def test_passages_and_archives_are_stored_found_and_deleted(cli: CommandLine) -> None:
    cli.agent("pam")
    archive = cli.run("archives", "create", "notes", "--agent", "pam")[1].strip()
    passage = cli.run("passages", "create", "-", "--agent", "pam", stdin="The launch is on Friday.\n")[1].strip()

    assert "launch" in cli.run("passages", "search", "launch", "--agent", "pam")[1]
    [row] = rows(cli.run("passages", "list", "--agent", "pam", "--json")[1])
    assert (row["id"], row["archive_id"]) == (passage, archive)
    assert cli.run("passages", "delete", passage, "-y")[0] == 0
    assert cli.run("passages", "list", "--agent", "pam", "--json")[1] == ""


def test_a_script_answers_an_approval(cli: CommandLine) -> None:
    agent = cli.agent("amy", blocks={"human": ""})
    cli.require_approval(agent, "memory_insert")
    cli.run("messages", "send", "amy", "My name is Amy.")

    [pending] = rows(cli.run("approvals", "list", "--json")[1])
    assert pending["tool_call"]["name"] == "memory_insert"
    assert cli.run("approvals", "answer", "amy")[0] == 2
    assert cli.run("approvals", "answer", "amy", "--approve", "--call", "no-such-call")[0] == 3
    call = cli.lines_of_terminal("approvals", "list")[1].split()[1]
    code, _, err = cli.run("approvals", "answer", "amy", "--approve", "--call", call[:-1])
    assert (code, err) == (0, "")
    assert "Amy" in cli.run("memory", "show", "amy")[1]
    assert cli.run("approvals", "answer", "amy", "--deny", "--reason", "no")[0] == 3


def test_exit_codes_tell_what_is_wrong(cli: CommandLine, closed_port: int) -> None:
    missing = "agent-12345678-1234-4123-8123-123456789abc"
    for arguments, code in (
        (("agents", "show", missing), 3),
        (("agents", "show"), 2),
        (("agents", "list", "--target", f"127.0.0.1:{closed_port}"), 4),
        (("agents", "list", "--profile", "nowhere"), 3),
    ):
        found, out, err = cli.run(*arguments)
        assert (found, out) == (code, ""), arguments
        assert "Traceback" not in err


def test_status_shows_each_service_and_since_when(cli: CommandLine, closed_port: int) -> None:
    services = rows(cli.run("status", "--json")[1])

    serving = {row["service"] for row in services if row["health"] == "SERVING"}
    assert {"orchestrator", "blocks", "recall", "archival", "tools", "files"} <= serving
    assert all(row["start_time"] and row["uptime"] for row in services if row["service"] == "blocks")
    figures = json.loads(cli.run("top", "--once", "--json")[1])
    assert figures["active_runs"] == 0


def test_profiles_name_meshes(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    address = cli.environment()["MNEMESH_TARGET"]
    cli.agent("zoe")
    monkeypatch.setenv("MNEMESH_TARGET", "127.0.0.1:1")

    assert cli.run("profiles", "set", "team", "--address", address)[0] == 0
    assert config_file().stat().st_mode & 0o077 == 0
    assert "zoe" in cli.run("agents", "list", "--profile", "team")[1]
    assert cli.run("agents", "list")[0] == 4  # the environment comes before the current profile
    monkeypatch.delenv("MNEMESH_TARGET")
    cli.run("profiles", "use", "team")
    assert "zoe" in cli.run("agents", "list")[1]
    [row] = rows(cli.run("profiles", "list", "--json")[1])
    assert (row["name"], row["is_current"], row["target"]) == ("team", True, address)
    cli.run("profiles", "delete", "team")
    assert not config_file().read_text().strip()

    config_file().write_text("[profiles.team]\nadress = 'x'\n")
    code, _, err = cli.run("agents", "list", "--profile", "team")
    assert code == 2
    assert "adress" in err


def test_logs_are_those_of_the_services(cli: CommandLine, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "blocks.log").write_text("one\ntwo\nthree\n")
    (logs / "recall.log").write_text("four\n")

    assert cli.run("logs", "blocks", "-n", "2", "--data-dir", str(tmp_path))[1] == "two\nthree\n"
    assert "recall       four" in cli.run("logs", "--data-dir", str(tmp_path))[1]
    (logs / "mesh.log").write_text('{"event":"a","service":"blocks"}\n{"event":"b","service":"recall"}\n')
    assert cli.run("logs", "recall", "--data-dir", str(tmp_path))[1] == 'four\n{"event":"b","service":"recall"}\n'
    assert cli.run("logs", "nothing", "--data-dir", str(tmp_path))[0] == 2
    assert cli.run("logs", "--data-dir", str(tmp_path / "no"))[0] == 3


def test_completion_offers_names_and_is_silent_without_a_mesh(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    cli.agent("completed")
    monkeypatch.setenv("_MNEMESH_COMPLETE", "complete_bash")

    def complete(line: str) -> tuple[int, str, str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        return cli.run()

    with monkeypatch.context() as patient:
        patient.setattr(options, "_SECONDS", scaled(60))
        assert complete("mnemesh agents show comp")[1].split() == ["completed"]
    code, out, err = complete(f"mnemesh --target 127.0.0.1:{closed_port} agents show comp")
    assert (code, out.strip(), err) == (0, "", "")


def test_the_option_for_an_agent_has_the_same_short_form_everywhere() -> None:
    named = {
        (path, option)
        for path, command in all_commands().items()
        for parameter in command.params
        for option in parameter.opts
        if "--agent" in parameter.opts or "-a" in parameter.opts
    }
    assert {path for path, option in named if option == "--agent"} == {path for path, option in named if option == "-a"}
