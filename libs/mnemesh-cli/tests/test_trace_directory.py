"""The lines of trace files: round trips, invalid lines, and a line that a crash left incomplete."""

import json
from pathlib import Path
from typing import Any

import pytest
from mnemesh_cli.agent_exports import RECORDS, Exported
from mnemesh_cli.trace_files.directory import (
    ACTIVE,
    ARCHIVE,
    TraceDirectory,
    episode_from_line,
    episode_to_line,
    fact_from_line,
    fact_to_line,
    trace_from_line,
    trace_to_line,
)
from mnemesh_kit.errors import InvalidArgument


@pytest.mark.parametrize("line", [
    {"id": "rt_001", "ts": 1738100000.12, "turn_id": "turn_0001", "seq": 1, "trace_type": "user",
     "content": "Please refactor the parser.", "source_event": "LLMUserMessageReadyEvent",
     "media": {"images": [], "audio": [], "video": []}, "tags": ["processed"]},
    {"id": "rt_002", "ts": 1738100002.456789, "turn_id": "turn_0001", "seq": 2, "trace_type": "tool_call",
     "content": "", "source_event": "PendingToolInvocationEvent", "tool_name": "list", "tool_args": {"path": "src"}},
    {"id": "rt_003", "ts": 1738100003, "turn_id": "turn_0001", "seq": 3, "trace_type": "tool_result", "content": "",
     "source_event": "ToolResultEvent", "tool_name": "x", "tool_result": ["app.py", None], "mood": {"calm": True},
     "conversation_id": "not ours", "tags": "none"},
])  # fmt: skip
def test_trace_line_survives_a_round_trip(line: dict[str, Any]) -> None:
    assert trace_to_line(trace_from_line(line, archived=False).raw_trace) == line


def test_lines_of_episodes_and_facts_survive_a_round_trip() -> None:
    episode = {
        "id": "ep_0001", "ts": 1738100500.0, "turn_ids": ["turn_0001"], "summary": "…", "tags": ["a"], "salience": 0.7,
        "source": "elsewhere", "weather": "fine", "memory_scope": "team/boats",
    }  # fmt: skip
    assert episode_to_line(episode_from_line(episode).episode) == episode
    fact = {
        "id": "sem_0001", "ts": 1738100501.0, "fact": "Use pytest.", "tags": ["testing"], "confidence": 0.8,
        "salience": 0.9, "valid_from_ts": -5.25,
    }  # fmt: skip
    assert fact_to_line(fact_from_line(fact).fact) == fact


def test_invalid_lines_are_refused_with_their_file_and_number(tmp_path: Path) -> None:
    good = {"id": "a", "ts": 1.0, "turn_id": "t", "seq": 1, "trace_type": "user", "content": "", "source_event": ""}
    for bad, problem in (
        ("{", "not JSON"),
        ("\udcff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"a": 1}', "id is missing"),
        (json.dumps({**good, "id": ["b"]}), "id is missing or has the wrong type"),
        (json.dumps({**good, "id": "b", "seq": "1"}), "seq"),
        (json.dumps({**good, "id": "b", "trace_type": "x"}), "trace_type"),
        (json.dumps({**good, "id": "b", "seq": 1 << 70}), "a value cannot be stored"),
        (json.dumps({**good, "id": "b", "ts": float("inf")}), "a value cannot be stored"),
        (json.dumps({**good, "id": "b", "content": "\ud800"}), "a value cannot be stored"),
    ):
        path = tmp_path / ACTIVE
        path.write_text(f"{json.dumps(good)}\n{json.dumps(good)}\n\n{bad}\n", errors="surrogateescape")
        with pytest.raises(InvalidArgument) as error:
            list(TraceDirectory(tmp_path).records())
        assert error.value.message.startswith(f"{path}, line 4: {problem}")
        assert "\n" not in error.value.message


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / ACTIVE).mkdir()
    with pytest.raises(InvalidArgument, match=f"{ACTIVE} cannot be read"):
        list(TraceDirectory(tmp_path).records())


def test_incomplete_last_line_is_skipped_and_removed(tmp_path: Path) -> None:
    directory = TraceDirectory(tmp_path)
    one = {"id": "a", "ts": 1.0, "turn_id": "t", "seq": 1, "trace_type": "user", "content": "", "source_event": ""}
    two = {**one, "id": "b", "seq": 2}
    directory.update([one, two], [], [], [])
    (tmp_path / ARCHIVE).write_text(json.dumps(one)[:20])
    assert [record.raw_trace.id for record in directory.records()] == ["a", "b"]
    directory.update([two], [one], [], [])
    assert (directory.lines(ARCHIVE), directory.lines(ACTIVE)) == ([one], [two])


@pytest.mark.parametrize(("content", "problem"), [(b'{"a": "\xff"}', "line 1: not JSON"), (None, "cannot be read")])
def test_file_of_records_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / RECORDS
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=problem) as error:
        Exported.of(path)
    assert error.value.message.startswith(str(path))


def test_file_of_records_without_a_last_line_break_is_read(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text('{"agent": {"id": "agent-1"}}')
    assert Exported.of(tmp_path / RECORDS).agent_id == "agent-1"
