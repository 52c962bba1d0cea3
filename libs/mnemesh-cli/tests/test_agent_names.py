"""Names of agents: the command line keeps them apart, and names the candidates if they are not."""

import json
from pathlib import Path

from .command_line import CommandLine


def names(cli: CommandLine) -> list[str]:
    return [json.loads(line)["name"] for line in cli.run("agents", "list", "--json")[1].splitlines()]


def test_an_agent_with_the_name_of_another_is_refused_unless_it_is_forced(cli: CommandLine) -> None:
    first = cli.run("agents", "create", "nora")[1].strip()
    code, out, err = cli.run("agents", "create", "nora")
    assert (code, out) == (1, "")
    assert f"An agent is named 'nora' already: {first}." in err
    assert "ALREADY_EXISTS" in err
    cli.run("agents", "create", "nils")
    assert cli.run("agents", "update", "nils", "--name", "nora")[0] == 1
    assert cli.run("agents", "update", "nora", "--name", "nora")[0] == 0

    second = cli.run("agents", "create", "nora", "--force")[1].strip()
    for command in (("agents", "show"), ("messages", "send"), ("memory", "show")):
        code, _, err = cli.run(*command, "nora", *(["Hello."] if command[0] == "messages" else []))
        assert code == 1
        assert f"Several agents are named 'nora': {first}, {second}." in err
    assert cli.run("agents", "update", second, "--name", "nils", "--force")[0] == 0
    assert names(cli).count("nils") == 2


def test_an_agent_whose_name_begins_as_an_id_is_found(cli: CommandLine) -> None:
    for name in ("agent-7", "agent-abcdef"):
        cli.run("agents", "create", name)
        assert json.loads(cli.run("agents", "show", name, "--json")[1])["name"] == name
    assert cli.run("agents", "show", "agent-12345678")[0] == 3
    # A name goes before the beginning of an id.
    other = cli.run("agents", "create", "other")[1].strip()
    named = cli.run("agents", "create", other[:12])[1].strip()
    assert json.loads(cli.run("agents", "show", other[:12], "--json")[1])["id"] == named
    assert json.loads(cli.run("agents", "show", other[:13], "--json")[1])["id"] == other


def test_an_import_beside_its_original_gets_a_number(cli: CommandLine, tmp_path: Path) -> None:
    cli.run("agents", "create", "olga")
    cli.run("messages", "send", "olga", "My name is Olga.")
    whole, letta, directory = tmp_path / "olga.jsonl", tmp_path / "af", tmp_path / "memory"
    assert cli.run("export", "olga", "--file", str(whole))[0] == 0
    assert cli.run("export", "olga", "--format", "letta", "--dir", str(letta))[0] == 0
    assert cli.run("export", "olga", "--dir", str(directory))[0] == 0
    [file] = letta.glob("*.af")

    for path, name in ((whole, "olga (2)"), (file, "olga (3)")):
        for _ in range(2):
            code, out, err = cli.run("import", str(path))
            assert code == 0, err
            assert out.startswith(f"{name}: ")
    assert sorted(name for name in names(cli) if name.startswith("olga")) == ["olga", "olga (2)", "olga (3)"]
    assert cli.run("agents", "delete", "olga", "--yes")[0] == 0
    assert cli.run("import", str(directory))[1].startswith("olga: created ")


def test_unknown_cost_of_an_agent_is_not_shown_as_zero(cli: CommandLine) -> None:
    cli.run("agents", "create", "peter")
    assert "cost:" not in cli.run("agents", "show", "peter")[1]
    cli.run("messages", "send", "peter", "Hello")
    assert "cost: unknown" in cli.run("agents", "show", "peter")[1]


def test_the_beginning_of_an_id_that_is_too_short_is_named_so(cli: CommandLine) -> None:
    code, _, err = cli.run("agents", "show", "agent-9")
    assert (code, "An id needs at least 4 characters after agent-." in err) == (3, True)
