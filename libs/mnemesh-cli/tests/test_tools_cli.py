"""The commands for tools, over a whole mesh."""

import json
from pathlib import Path

import pytest
from mnemesh_client.inputs import npm_requirements
from mnemesh_kit.errors import InvalidArgument
from mnemesh_testkit.mesh.in_process import MeshThread

from .command_line import CommandLine

ADD = '''
def add_numbers(left: int, right: int = 1) -> int:
    """Adds two numbers and returns their sum, whatever their signs are.

    Args:
        left: The first number.
        right: The second number.
    """
    print("adding")
    return left + right
'''
GREET = """
/**
 * Greets a person.
 *
 * @param name The name.
 */
export function greet_person(name: string): string {
  return `Hello, ${name}!`;
}
"""


@pytest.fixture
def add(tmp_path: Path) -> str:
    """The path of a tool in Python."""
    path = tmp_path / "add.py"
    path.write_text(ADD)
    return str(path)


def test_a_tool_is_created_listed_shown_run_replaced_and_deleted(cli: CommandLine, add: str) -> None:
    code, schema, _ = cli.run("tools", "schema", add)
    assert (code, json.loads(schema)["parameters"]["required"]) == (0, ["left"])
    code, created, err = cli.run("tools", "create", add, "--tag", "sums", "--approval")
    assert (code, err) == (0, "")
    tool_id = created.strip()
    _, listed, _ = cli.run("tools", "list")
    assert [line.split()[:2] for line in listed.splitlines()] == [["TOOL", "TYPE"], ["add_numbers", "custom"]]
    _, everything, _ = cli.run("tools", "list", "--builtin", "--json")
    assert {"add_numbers", "archival_memory_search"} <= {json.loads(line)["name"] for line in everything.splitlines()}
    _, shown, _ = cli.run("tools", "show", "add_numbers")
    assert "parameters: left, right?" in shown.splitlines()
    assert ("return left + right" in shown, "required" in shown) == (True, True)
    assert cli.run("tools", "run", "add_numbers", '{"left": 2}') == (0, "adding\n3\n", "")
    _, answer, _ = cli.run("tools", "run", tool_id, '{"left": 2, "right": 5}', "--json")
    assert json.loads(answer)["result"] == "7"
    Path(add).write_text(ADD.replace("left + right", "left - right"))
    assert cli.run("tools", "upsert", add)[1].strip() == tool_id
    assert cli.run("tools", "run", "add_numbers", '{"left": 2}')[1] == "adding\n1\n"
    assert json.loads(cli.run("tools", "show", tool_id, "--json")[1])["tags"] == ["sums"]
    assert "add_numbers" in cli.run("tools", "search", "add numbers")[1]
    code, out, _ = cli.run("tools", "delete", "add_numbers", "--yes")
    assert (code, out.strip()) == (0, f"deleted {tool_id}")


def test_a_file_with_the_ending_ts_is_typescript(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "greet.ts"
    path.write_text(GREET)
    code, schema, err = cli.run("tools", "schema", str(path))
    assert (code, err) == (0, "")
    assert json.loads(schema)["name"] == "greet_person"


def test_errors_are_one_line(cli: CommandLine, add: str, tmp_path: Path) -> None:
    assert cli.run("tools", "create", add)[0] == 0
    Path(add).write_text(ADD.replace("return left", "raise ValueError('odd')\n    return left"))
    cli.run("tools", "upsert", add)
    code, out, err = cli.run("tools", "run", "add_numbers", '{"left": 2}')
    assert (code, out, "odd" in err.splitlines()[-1]) == (1, "adding\n", True)
    (tmp_path / "broken.py").write_text("def broken(:")
    for arguments, code in (
        (("show", "unknown_tool"), 3),
        (("create", add), 1),
        (("create", str(tmp_path / "broken.py")), 1),
        (("create", add, "--package", "/etc/passwd"), 1),
        (("run", "add_numbers", '{"left": "many"}'), 1),
    ):
        found, out, err = cli.run("tools", *arguments)
        assert (found, out, err.count("\n")) == (code, "", 1), err
    for text in ("[1]", "{"):
        found, _, err = cli.run("tools", "run", "add_numbers", text)
        assert (found, "arguments are not" in err) == (2, True)


def test_a_program_runs_once(running: MeshThread) -> None:
    answer = running.run(running.mesh.client.tools.run_code("print('now')\n20 + 1", seconds=60))
    assert (answer.result, answer.stdout) == ("21", "now\n")


def test_requirements_of_npm() -> None:
    found = npm_requirements(["zod", "zod@^3.24", "@scope/name", "@scope/name@1.2.3"])
    assert [(item.name, item.version) for item in found] == [
        ("zod", ""),
        ("zod", "^3.24"),
        ("@scope/name", ""),
        ("@scope/name", "1.2.3"),
    ]
    with pytest.raises(InvalidArgument):
        npm_requirements(["https://example.com/a.tgz"])
