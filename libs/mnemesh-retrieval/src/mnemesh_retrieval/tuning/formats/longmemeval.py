"""LongMemEval's format: questions, each with its own history (`haystack_sessions`)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from mnemesh_retrieval.tuning.dialogues import Dialogue, Question, Role, Session, Turn
from mnemesh_retrieval.tuning.formats.fields import Field
from mnemesh_retrieval.tuning.formats.native import PAUSE

ABSTENTION: Final = "_abs"
"""The end of the ids of questions that the history does not answer."""
_TIME: Final = "%Y/%m/%d %H:%M"
_WEEKDAY: Final = re.compile(r"\s*\([^)]*\)\s*")


def dialogue(sample: Field, number: int) -> Dialogue:  # noqa: ARG001 - the readers have one signature
    """Returns a question's history as a dialogue with that one question.

    Evidence are the turns with `has_answer` in the sessions of `answer_session_ids`. Questions with the suffix `_abs`
    have none.

    Raises:
        DatasetInvalid: a field is missing or wrong, or the lists of sessions, dates and ids differ in length.
    """
    sessions, dates, ids = (
        list(sample[key].items()) for key in ("haystack_sessions", "haystack_dates", "haystack_session_ids")
    )
    if not len(sessions) == len(dates) == len(ids):
        raise sample.invalid(
            f"has {len(sessions)} haystack_sessions, {len(dates)} haystack_dates and {len(ids)} haystack_session_ids"
        )
    id_ = sample["question_id"].plain()
    answering = {each.plain() for each in sample["answer_session_ids"].items()}
    evidence: set[str] = set()
    read: list[Session] = []
    for at in sorted(range(len(sessions)), key=lambda at: _time(dates[at])):
        name = ids[at].plain()
        session = _session(sessions[at], _time(dates[at]), f"{name}#{at + 1}" if _is_repeated(name, ids) else name)
        read.append(session)
        if name in answering:
            evidence |= _answering(sessions[at], session)
    question = _question(sample, id_, frozenset(evidence))
    return Dialogue(id=id_, sessions=tuple(read), questions=(question,))


def _is_repeated(name: str, ids: list[Field]) -> bool:
    return len([each for each in ids if each.value == name]) > 1


def _session(session: Field, started_at: datetime, name: str) -> Session:
    turns: list[Turn] = []
    for number, turn in enumerate(session.items(), start=1):
        role = turn["role"].text()
        if role not in ("user", "assistant"):
            raise turn["role"].invalid(f"is {role!r}, not 'user' or 'assistant'")
        said_at = started_at + number * PAUSE
        text = turn["content"].text()
        which: Role = "user" if role == "user" else "assistant"
        turns.append(Turn(id=f"{name}:{number}", speaker="", role=which, text=text, said_at=said_at))
    return Session(id=name, turns=tuple(turns))


def _answering(data: Field, session: Session) -> set[str]:
    marks = [turn.get("has_answer") for turn in data.items()]
    return {turn.id for turn, mark in zip(session.turns, marks, strict=True) if mark is not None and mark.truth()}


def _question(sample: Field, id_: str, evidence: frozenset[str]) -> Question:
    abstention = id_.endswith(ABSTENTION)
    asked_at = sample.get("question_date")
    return Question(
        id=id_,
        text=sample["question"].filled_text(),
        category="abstention" if abstention else sample["question_type"].filled_text(),
        evidence=frozenset() if abstention else evidence,
        answer=sample["answer"].plain(),
        is_unanswerable=abstention,
        asked_at=_time(asked_at) if asked_at else None,
        judged_only=True,
    )


def _time(value: Field) -> datetime:
    return value.time(
        lambda text: datetime.strptime(_WEEKDAY.sub(" ", text), _TIME),  # noqa: DTZ007 - Field.time adds the zone
        "2023/05/20 (Sat) 02:21",
    )
