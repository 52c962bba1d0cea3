"""Reads dialogues from a file.

    {"dialogues": [{
        "sessions": [{
            "started_at": "2024-01-14T18:20:00Z",
            "utterances": [{"id": "1:1", "speaker": "Nora", "text": "…", "said_at": "2024-01-14T18:21:00Z"}]}],
        "questions": [{"text": "…", "evidence": ["1:1"], "kind": "when"}]}]}

Sessions and utterances are in order; `evidence` lists the utterances that answer. `said_at` and `kind` are optional: by
default, utterances are half a minute apart, and all questions are of one kind. A list of samples in the format of
LoCoMo (`conversation` with `session_1`, `session_1_date_time` …, and `qa`) is also accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.dialogues import Dialogue, Question, Turn, dialogues

PAUSE: Final = timedelta(seconds=30)
_LOCOMO_TIME: Final = "%I:%M %p on %d %B, %Y"
_LOCOMO_ID: Final = re.compile(r"D:?(\d+):(\d+)")


def chosen(source: str, seed: int) -> tuple[Dialogue, ...]:
    """Returns generated dialogues if `source` is a number, otherwise the dialogues of that file."""
    return dialogues(int(source), seed) if source.isdecimal() else transcripts(Path(source))


def transcripts(path: Path) -> tuple[Dialogue, ...]:
    """Returns the dialogues of a file. Questions without evidence among the utterances are omitted.

    Raises:
        ValueError: the file has neither of the two formats, or contains an id twice.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    data = [_from_locomo(each) for each in content] if isinstance(content, list) else content.get("dialogues")
    if not data:
        raise ValueError(f"{path} has no dialogues")
    return tuple(map(_dialogue, data))


def _dialogue(data: Mapping[str, Any]) -> Dialogue:
    numbers: dict[str, int] = {}
    turns: list[Turn] = []
    speakers: dict[str, None] = {}
    for session, each in enumerate(data["sessions"]):
        now = _time(each["started_at"])
        for utterance in each["utterances"]:
            now = _time(utterance["said_at"]) if "said_at" in utterance else now + PAUSE
            if utterance["id"] in numbers:
                raise ValueError(f"two utterances are {utterance['id']}")
            numbers[utterance["id"]] = len(turns)
            speaker = utterance["speaker"]
            speakers.setdefault(speaker)
            first = speaker == next(iter(speakers))
            turns.append(Turn(len(turns), session, speaker, first, utterance["text"], now))
    return Dialogue(tuple(speakers), tuple(turns), tuple(_questions(data["questions"], numbers)))


def _questions(data: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]) -> Iterator[Question]:
    for each in data:
        evidence = frozenset(numbers[id_] for id_ in each["evidence"] if id_ in numbers)
        if evidence:
            yield Question(str(each.get("kind", "all")), each["text"], evidence)


def _time(data: str) -> datetime:
    time = datetime.fromisoformat(data)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _from_locomo(sample: Mapping[str, Any]) -> dict[str, Any]:
    talk = sample["conversation"]
    numbers = sorted(int(key.removeprefix("session_")) for key in talk if re.fullmatch(r"session_\d+", key))
    sessions = [
        {
            "started_at": datetime.strptime(talk[f"session_{number}_date_time"], _LOCOMO_TIME)
            .replace(tzinfo=UTC)
            .isoformat(),
            "utterances": [
                {"id": _locomo_ids(turn["dia_id"])[0], "speaker": turn["speaker"], "text": turn["text"]}
                for turn in talk[f"session_{number}"]
            ],
        }
        for number in numbers
    ]
    questions = [
        {"text": each["question"], "evidence": _locomo_ids(" ".join(each["evidence"])), "kind": each["category"]}
        for each in sample["qa"]
    ]
    return {"sessions": sessions, "questions": questions}


def _locomo_ids(data: str) -> list[str]:
    return [f"{int(session)}:{int(turn)}" for session, turn in _LOCOMO_ID.findall(data)]
