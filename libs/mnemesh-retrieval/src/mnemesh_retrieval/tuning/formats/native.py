"""The project's own format of dialogues.

    {"dialogues": [{
        "id": "nora-tomas",
        "sessions": [{
            "started_at": "2024-01-14T18:20:00Z",
            "utterances": [{"id": "1:1", "speaker": "Nora", "text": "…", "said_at": "2024-01-14T18:21:00Z"}]}],
        "questions": [{"text": "…", "evidence": ["1:1"], "kind": "when", "answer": "…"}]}]}

Sessions and utterances are in order; `evidence` lists the utterances that answer. Optional: `id`, by default a number;
`said_at`, by default half a minute after the utterance before; `kind`; `answer`; `asked_at`; `unanswerable`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from mnemesh_retrieval.tuning.dialogues import Dialogue, Question, Role, Session, Turn
from mnemesh_retrieval.tuning.formats.fields import Field

PAUSE: Final = timedelta(seconds=30)
_TIME: Final = "2024-01-14T18:20:00Z"


def dialogue(sample: Field, number: int) -> Dialogue:
    """Returns a dialogue. Raises DatasetInvalid."""
    speakers: dict[str, None] = {}
    ids: set[str] = set()
    sessions = tuple(_session(each, at, speakers, ids) for at, each in enumerate(sample["sessions"].items(), start=1))
    questions = tuple(_question(each, at, ids) for at, each in enumerate(sample["questions"].items(), start=1))
    named = sample.get("id")
    return Dialogue(
        id=named.plain() if named else str(number + 1), sessions=sessions, questions=questions, speakers=tuple(speakers)
    )


def _session(session: Field, number: int, speakers: dict[str, None], ids: set[str]) -> Session:
    now = _time(session["started_at"])
    turns: list[Turn] = []
    for utterance in session["utterances"].items():
        said_at = utterance.get("said_at")
        now = _time(said_at) if said_at else now + PAUSE
        id_ = utterance["id"].plain()
        if id_ in ids:
            raise utterance["id"].invalid(f"is {id_!r}, the id of an earlier utterance")
        ids.add(id_)
        speaker = utterance["speaker"].filled_text()
        speakers.setdefault(speaker)
        role: Role = "user" if speaker == next(iter(speakers)) else "assistant"
        turns.append(Turn(id=id_, speaker=speaker, role=role, text=utterance["text"].filled_text(), said_at=now))
    return Session(id=str(number), turns=tuple(turns))


def _question(question: Field, number: int, ids: set[str]) -> Question:
    evidence = [(each, each.plain()) for each in question["evidence"].items()]
    for each, id_ in evidence:
        if id_ not in ids:
            raise each.invalid(f"is {id_!r}, which is not the id of an utterance")
    named, kind, answer = question.get("id"), question.get("kind"), question.get("answer")
    asked_at, unanswerable = question.get("asked_at"), question.get("unanswerable")
    return Question(
        id=named.plain() if named else str(number),
        text=question["text"].filled_text(),
        category=kind.plain() if kind else "all",
        evidence=frozenset(id_ for _, id_ in evidence),
        answer=answer.plain() if answer else None,
        is_unanswerable=unanswerable.truth() if unanswerable else False,
        asked_at=_time(asked_at) if asked_at else None,
    )


def _time(value: Field) -> datetime:
    return value.time(datetime.fromisoformat, _TIME)
