"""Texts of the command line: counts with their nouns, lists that fit a line, and where a passage comes from."""

from types import SimpleNamespace
from typing import Any, cast

from mnemesh.archival.v1 import archives_pb2
from mnemesh_cli.commands.agents import _wrapped
from mnemesh_cli.commands.export_import import _import_report
from mnemesh_cli.commands.resources import agent_column


def test_import_of_one_thing_of_each_kind_is_told_in_the_singular() -> None:
    names = ("traces", "turns", "episodes", "facts", "blocks", "conversations", "passages", "skipped")
    counts = SimpleNamespace(**dict.fromkeys(names, 1))
    assert _import_report(cast("Any", SimpleNamespace(name="Ada", id="")), cast("Any", counts)) == (
        "Ada: imported 1 trace in 1 new turn, 1 episode, 1 fact, 1 block, 1 conversation, 1 passage; "
        "skipped 1 existing record"
    )


def test_names_of_many_tools_are_wrapped_within_100_columns() -> None:
    names = [f"a_tool_with_a_name_{number}" for number in range(20)]
    lines = _wrapped("tools: ", names).splitlines()
    assert len(lines) > 1
    assert max(len(line) for line in lines) <= 93
    assert ", ".join(names) == " ".join(lines)


async def test_passage_without_an_agent_shows_its_file_or_its_archive() -> None:
    of_file = archives_pb2.Passage(id="1", file_name="notes.txt")
    of_archive = archives_pb2.Passage(id="2", archive_id="archive-1")
    column = await agent_column(cast("Any", None), [of_file, of_archive])
    assert column.title == "FROM"
    assert [str(column.value(row)) for row in (of_file, of_archive)] == ["file notes.txt", "archive archive-1"]
