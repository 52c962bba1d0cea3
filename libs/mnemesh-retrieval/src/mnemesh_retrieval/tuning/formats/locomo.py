"""LoCoMo's format: samples with `conversation` (`session_1`, `session_1_date_time`, …) and `qa`."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from mnemesh_retrieval.tuning.dialogues import Dialogue, Question, Role, Session, Turn
from mnemesh_retrieval.tuning.formats.fields import Field
from mnemesh_retrieval.tuning.formats.native import PAUSE

CATEGORIES: Final = {"1": "multi-hop", "2": "temporal", "3": "open-domain", "4": "single-hop", "5": "adversarial"}
_TIME: Final = "%I:%M %p on %d %B, %Y"
_SESSION: Final = re.compile(r"session_(\d+)")
_ID: Final = re.compile(r"D:?\s*(\d+)\s*:\s*(\d+)")
"""Matches also the spellings "D:11:26" and "D30:05", which occur in the published data."""


def dialogue(sample: Field, number: int) -> Dialogue:
    """Returns the dialogue of a sample.

    Evidence that names no turn is ignored, because the published data contains such ids.

    Raises:
        DatasetInvalid: a field is missing or wrong.
    """
    conversation = sample["conversation"]
    numbers = sorted(int(found[1]) for key in _keys(conversation) if (found := _SESSION.fullmatch(key)))
    if not numbers:
        raise conversation.invalid("has no session_1")
    speakers = {
        named.filled_text(): None for key in ("speaker_a", "speaker_b") if (named := conversation.get(key)) is not None
    }
    ids: set[str] = set()
    sessions = tuple(_session(conversation, each, speakers, ids) for each in numbers)
    questions = tuple(_question(each, at, ids) for at, each in enumerate(sample["qa"].items(), start=1))
    named = sample.get("sample_id")
    return Dialogue(
        id=named.plain() if named else str(number + 1), sessions=sessions, questions=questions, speakers=tuple(speakers)
    )


def _keys(conversation: Field) -> list[str]:
    if not isinstance(conversation.value, dict):
        raise conversation.invalid("is not an object")
    return list(conversation.value)


def _session(conversation: Field, number: int, speakers: dict[str, None], ids: set[str]) -> Session:
    now = conversation[f"session_{number}_date_time"].time(
        lambda text: datetime.strptime(text, _TIME),  # noqa: DTZ007 - Field.time adds the zone
        "1:56 pm on 8 May, 2023",
    )
    turns: list[Turn] = []
    for turn in conversation[f"session_{number}"].items():
        now += PAUSE
        id_ = _id(turn["dia_id"], ids)
        ids.add(id_)
        speaker = turn["speaker"].filled_text()
        speakers.setdefault(speaker)
        role: Role = "user" if speaker == next(iter(speakers)) else "assistant"
        text, caption = turn["text"].text(), turn.get("blip_caption")
        picture = caption.text() if caption else ""
        turns.append(Turn(id=id_, speaker=speaker, role=role, text=text, said_at=now, picture=picture))
    return Session(id=f"session_{number}", turns=tuple(turns))


def _id(field: Field, earlier: set[str]) -> str:
    found = _ids(field.text())
    if len(found) != 1:
        raise field.invalid(f"is {field.value!r}, not an id such as 'D1:3'")
    if found[0] in earlier:
        raise field.invalid(f"is {field.value!r}, the id of an earlier turn")
    return found[0]


def _question(question: Field, number: int, ids: set[str]) -> Question:
    category = question["category"].plain()
    if category not in CATEGORIES:
        raise question["category"].invalid(f"is {category}, not a number from 1 to 5")
    named = question.get("evidence")
    evidence = [id_ for each in named.items() for id_ in _ids(each.text())] if named else []
    answer = question.get("answer")
    return Question(
        id=str(number),
        text=question["question"].filled_text(),
        category=CATEGORIES[category],
        evidence=frozenset(evidence) & ids,
        answer=answer.plain() if answer else None,
        is_unanswerable=category == "5",
    )


def _ids(text: str) -> list[str]:
    return [f"D{int(session)}:{int(turn)}" for session, turn in _ID.findall(text)]
