"""Tables: what a terminal of 80 columns shows, and what --wide, pipes and --json show whole."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mnemesh_cli.display.records import Column, Kind, short_ids, table_lines, time_text
from rich.cells import cell_len

from .command_line import CommandLine

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
IDS = (
    "agent-12345678-1234-4123-8123-123456789abc",
    "agent-12345678-9234-4123-8123-123456789abc",
    "agent-99999999-1234-4123-8123-123456789abc",
)


def test_tables_are_as_wide_as_the_terminal() -> None:
    columns = (
        Column("ID", lambda row: row[0], kind=Kind.ID),
        Column("NAME", lambda row: row[1], flexible=True),
        Column("STATUS", lambda row: row[2]),
        Column("SENT", lambda _: NOW - timedelta(minutes=3), kind=Kind.TIME),
    )
    rows = [(IDS[0], "名前 " * 40, "waiting for approval"), (IDS[2], "b\nc", "completed")]
    lines = table_lines(columns, rows, 80, NOW)

    assert all(cell_len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines[1:]] == ["agent-12345678", "agent-99999999"]
    assert lines[1].endswith("…   waiting for approval  3 min ago")
    assert "b c" in lines[2]
    whole = table_lines(columns, rows, None, NOW)
    assert whole[1].startswith(f"{IDS[0]}  {('名前 ' * 40).strip()}  waiting for approval  ")
    assert whole[1].endswith((NOW - timedelta(minutes=3)).astimezone().strftime("%Y-%m-%d %H:%M:%S %z"))


def test_short_ids_are_unique_in_their_table() -> None:
    assert short_ids(IDS) == {
        IDS[0]: "agent-12345678-1",
        IDS[1]: "agent-12345678-9",
        IDS[2]: "agent-99999999",
    }
    assert short_ids(["tool-abc", "plain", ""]) == {"tool-abc": "tool-abc", "plain": "plain", "": ""}
    assert set(short_ids(["call_0123456789abcdef", "call_0123456780"]).values()) == {
        "call_0123456789",
        "call_0123456780",
    }


@pytest.mark.parametrize(
    ("age", "text"),
    [
        ({"seconds": -5}, "0 s ago"),
        ({"seconds": 59}, "59 s ago"),
        ({"minutes": 59, "seconds": 59}, "59 min ago"),
        ({"hours": 23}, "23 h ago"),
        ({"days": 1}, "1 day ago"),
        ({"days": 6, "hours": 23}, "6 days ago"),
        ({"days": 7}, "2026-02-22"),
        ({"days": -7}, "2026-03-08"),
    ],
)
def test_times_are_relative_for_a_week(age: dict[str, int], text: str) -> None:
    assert time_text(NOW - timedelta(**age), NOW) == text


def test_every_list_fits_a_terminal_and_is_whole_with_wide(cli: CommandLine) -> None:
    name = "an-agent-with-a-long-name-of-a-person"
    agent = cli.run("agents", "create", name)[1].strip()
    cli.run("messages", "send", name, "My name is Ada. Remember that the launch of the new site is on Friday.")
    [run] = [json.loads(line) for line in cli.run("runs", "list", "--agent", agent, "--json")[1].splitlines()]
    for noun, of_agents in (
        ("agents", False), ("runs", True), ("messages", True), ("conversations", True), ("blocks", True),
        ("passages", False), ("archives", True),
    ):  # fmt: skip
        lines = cli.lines_of_terminal(noun, "list")
        assert max(map(len, lines)) <= 80, noun
        assert ("AGENT" in lines[0]) == of_agents
        assert any("an-age" in line for line in lines[1:]), noun
        assert len(lines[1].split()[0].partition("-")[2]) <= 12
        wide = cli.lines_of_terminal(noun, "list", "--wide")
        assert len(wide[1].split()[0].partition("-")[2]) == 36, noun
    [_, line] = cli.lines_of_terminal("runs", "list", "--agent", agent)
    assert line.split()[:5] == [run["id"][:12], *line.split()[1:4], "completed"]
    assert "ago" in line


def test_commands_accept_short_ids(cli: CommandLine) -> None:
    for name in ("sue", "sid"):
        cli.run("agents", "create", name)
    cli.run("messages", "send", "sue", "Remember that the launch is on Friday.")

    def short(*line: str) -> str:
        return cli.lines_of_terminal(*line, "--agent", "sue")[1].split()[0]

    for noun in ("runs", "messages", "conversations", "blocks", "passages", "archives"):
        id_ = short(noun, "list")
        shown = cli.run(noun, "show", id_, "--json")
        assert json.loads(shown[1])["id"].startswith(id_), (noun, shown)
    agent: dict[str, Any] = json.loads(cli.run("agents", "show", "sue", "--json")[1])
    assert json.loads(cli.run("agents", "show", agent["id"][:12], "--json")[1])["id"] == agent["id"]
    assert cli.run("runs", "list", "--agent", agent["id"][:14])[0] == 0
    block = short("blocks", "list")
    assert cli.run("blocks", "attach", block, "sid")[0] in (0, 1)  # sid has a block of this label
    assert cli.run("runs", "trace", short("runs", "list"))[0] == 0
    for line in (
        ("agents", "show", "agent-00000000"),
        ("runs", "show", "run-0000"),
        ("blocks", "delete", "block-0000"),
    ):
        assert cli.run(*line)[0] == 3
    cli.run("messages", "send", "sue", agent["id"][:12])
    said = [json.loads(line) for line in cli.run("messages", "list", "--agent", "sue", "--json")[1].splitlines()]
    assert agent["id"][:12] in json.dumps([row["content"] for row in said if row["role"] == "ROLE_USER"])


def test_an_ambiguous_short_id_lists_the_candidates(cli: CommandLine) -> None:
    """Of seventeen ids, two begin with the same digit."""
    cli.run("agents", "create", "tess")
    ids = [cli.run("passages", "create", f"Passage {n}.", "--agent", "tess")[1].strip() for n in range(17)]
    digit, _ = Counter(id_[: len("passage-1")] for id_ in ids).most_common(1)[0]
    code, out, err = cli.run("passages", "delete", digit, "--yes")
    assert (code, out) == (1, "")
    assert f" ids begin with {digit}: {digit}" in err
    assert len(cli.run("passages", "list", "--agent", "tess", "--json")[1].splitlines()) == 17
