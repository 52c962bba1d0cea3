"""Dialogues in the project's, LoCoMo's and LongMemEval's format are read; errors name the field."""

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks.datasets import DatasetInvalid, read_dialogues

DATA = Path(__file__).parent / "data"
NATIVE: dict[str, Any] = {
    "dialogues": [
        {
            "id": "a",
            "sessions": [
                {
                    "started_at": "2024-01-14T18:20:00Z",
                    "utterances": [
                        {"id": 1, "speaker": "Nora", "text": "I sold the boat."},
                        {"id": "2", "speaker": "Tomas", "text": "At last!", "said_at": "2024-01-14T19:00:00+01:00"},
                    ],
                }
            ],
            "questions": [{"text": "Who sold a boat?", "evidence": [1], "answer": "Nora"}],
        }
    ]
}


def written(directory: Path, data: Any, name: str = "talks.json") -> Path:
    path = directory / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_own_format(tmp_path: Path) -> None:
    (dialogue,) = read_dialogues(written(tmp_path, NATIVE))
    assert (dialogue.id, dialogue.speakers) == ("a", ("Nora", "Tomas"))
    assert [(turn.id, turn.role, turn.said_at) for turn in dialogue.turns()] == [
        ("1", "user", datetime(2024, 1, 14, 18, 20, 30, tzinfo=UTC)),
        ("2", "assistant", datetime(2024, 1, 14, 18, 0, tzinfo=UTC)),
    ]
    (question,) = dialogue.questions
    assert (question.category, set(question.evidence), question.answer) == ("all", {"1"}, "Nora")


def test_locomo() -> None:
    (dialogue,) = read_dialogues(DATA / "locomo.json")
    assert (dialogue.id, dialogue.speakers) == ("ferry-1", ("Ines", "Oskar"))
    assert [session.id for session in dialogue.sessions] == ["session_1", "session_2"], "session_3 has a date only"
    photo = next(turn for turn in dialogue.turns() if turn.id == "D1:3")
    assert photo.text_with_picture.endswith("she left. [picture: a photo of a red ferry at a wooden pier]")
    assert photo.said_at == datetime(2023, 5, 8, 13, 57, 30, tzinfo=UTC)
    assert [(each.category, sorted(each.evidence), each.answer) for each in dialogue.questions] == [
        ("single-hop", ["D1:2"], "A baker from Bergen"),
        ("temporal", ["D2:1"], "July 2023"),
        ("multi-hop", ["D2:1", "D2:2"], "Cello and violin"),
        ("temporal", ["D1:2"], "2023"),
        ("open-domain", [], "Likely yes"),
        ("adversarial", ["D2:1"], None),
    ]
    assert [each.is_unanswerable for each in dialogue.questions] == [False] * 5 + [True]
    assert len(dialogue.questions_with_evidence()) == 5


def test_longmemeval() -> None:
    answered, abstention = read_dialogues(DATA / "longmemeval.json")
    assert [session.id for session in answered.sessions] == ["soup_7", "answer_bike"], "sessions are in order of time"
    assert [turn.role for turn in answered.turns()] == ["user", "assistant"] * 2
    (question,) = answered.questions
    assert question.evidence == {"answer_bike:1"}
    assert question.asked_at == datetime(2023, 6, 2, 8, tzinfo=UTC)
    assert (question.category, question.answer) == ("single-session-user", "Green")
    (question,) = abstention.questions
    assert (question.category, question.evidence, question.is_unanswerable) == ("abstention", frozenset(), True)


def test_repeated_session_of_a_history_keeps_its_own_turns(tmp_path: Path) -> None:
    sample = json.loads((DATA / "longmemeval.json").read_text())[0]
    sample["haystack_session_ids"] = ["answer_bike", "answer_bike"]
    (dialogue,) = read_dialogues(written(tmp_path, [sample]))
    assert len({turn.id for turn in dialogue.turns()}) == 4
    assert len(dialogue.questions[0].evidence) == 1


def test_json_lines_and_a_single_sample(tmp_path: Path) -> None:
    sample = NATIVE["dialogues"][0]
    lines = json.dumps(sample) + "\n\n" + json.dumps(sample | {"id": "b"}) + "\n"
    assert [each.id for each in read_dialogues(written(tmp_path, lines, "talks.jsonl"))] == ["a", "b"]
    assert [each.id for each in read_dialogues(written(tmp_path, sample))] == ["a"]


OWN = ("dialogues", 0)


@pytest.mark.parametrize(
    ("source", "path", "value", "error"),
    [
        ("native", (*OWN, "sessions", 0, "started_at"), "noon", r"dialogues\[0\].sessions\[0\].started_at is 'noon'"),
        ("native", (*OWN, "sessions", 0, "utterances", 1, "id"), 1, r"utterances\[1\].id is '1', the id of an earlier"),
        ("native", (*OWN, "sessions", 0, "utterances", 1, "text"), " ", r"utterances\[1\].text is blank"),
        ("native", (*OWN, "questions", 0, "evidence", 0), "9", r"questions\[0\].evidence\[0\] is '9', which is not"),
        ("native", (*OWN, "questions", 0, "text"), None, r"questions\[0\].text is missing"),
        ("native", (*OWN, "sessions"), {}, r"dialogues\[0\].sessions is an object, not a list"),
        ("native", (*OWN, "sessions"), None, r"none of the fields haystack_sessions, conversation and sessions"),
        ("native", ("dialogues",), [], "has no dialogues"),
        ("native", ("dialogues",), None, "talks.json: dialogues is missing"),
        ("locomo", (0, "qa", 2, "category"), 6, r"\[0\].qa\[2\].category is 6, not a number from 1 to 5"),
        ("locomo", (0, "conversation", "session_1", 1, "dia_id"), "D1:01", r"session_1\[1\].dia_id is 'D1:01', the id"),
        ("locomo", (0, "conversation", "session_1", 1, "dia_id"), "x", r"dia_id is 'x', not an id such as 'D1:3'"),
        ("locomo", (0, "conversation", "session_2_date_time"), "May", r"session_2_date_time is 'May', not a time"),
        ("locomo", (0, "conversation", "session_2_date_time"), None, r"conversation.session_2_date_time is missing"),
        ("locomo", (0, "qa"), None, r"\[0\].qa is missing"),
        ("longmemeval", (0, "haystack_dates"), [], r"\[0\] has 2 haystack_sessions, 0 haystack_dates"),
        ("longmemeval", (0, "haystack_sessions", 1, 0, "role"), "tool", r"haystack_sessions\[1\]\[0\].role is 'tool'"),
        ("longmemeval", (0, "haystack_sessions", 0, 0, "has_answer"), 1, r"\[0\]\[0\].has_answer is a number"),
        ("longmemeval", (1, "question_id"), "bike-1", r"\[1\] has the id 'bike-1' of an earlier dialogue"),
    ],
)
def test_wrong_field_is_named(tmp_path: Path, source: str, path: tuple[Any, ...], value: Any, error: str) -> None:
    data = NATIVE if source == "native" else json.loads((DATA / f"{source}.json").read_text())
    data = place = copy.deepcopy(data)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(DatasetInvalid, match=error):
        read_dialogues(written(tmp_path, data))


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ('{"dialogues": [\n  {"id": }\n]}', "talks.json", "talks.json is not JSON at line 2, column 10"),
        ('{"sessions": [], "questions": []}\n{"sessions"', "talks.jsonl", "talks.jsonl is not JSON at line 2"),
        ('{"sessions": [], "questions": []}\n{"sessions": 1}', "talks.jsonl", r"line\[2\].sessions is a number"),
        ("[" * 100_000, "talks.json", "nested too deeply"),
        ("3", "talks.json", "talks.json is a number, not an object"),
    ],
)
def test_file_that_is_not_json_is_refused_with_its_line(tmp_path: Path, text: str, name: str, error: str) -> None:
    with pytest.raises(DatasetInvalid, match=error):
        read_dialogues(written(tmp_path, text, name))


def test_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetInvalid, match="cannot be read"):
        read_dialogues(tmp_path / "none.json")
    (tmp_path / "bin.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DatasetInvalid, match="cannot be read"):
        read_dialogues(tmp_path / "bin.json")
