"""Dialogues in sessions, and questions whose evidence is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One utterance."""

    id: str
    """Unique in its dialogue."""
    speaker: str
    """A name, or an empty string if the data has roles only."""
    role: Role
    text: str
    said_at: datetime
    picture: str = ""
    """The description of a picture that was sent with the text."""

    @property
    def text_with_picture(self) -> str:
        """The text, followed by the description of the picture if there is one."""
        return f"{self.text} [picture: {self.picture}]".strip() if self.picture else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns of one sitting, oldest first."""

    id: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a dialogue."""

    id: str
    """Unique in its dialogue."""
    text: str
    category: str
    evidence: frozenset[str] = frozenset()
    """The ids of the turns that answer. Search is scored on questions with evidence only."""
    answer: str | None = None
    """The expected answer, None if the data has none."""
    is_unanswerable: bool = False
    """True if the dialogue does not contain the answer, and a reader should say so."""
    asked_at: datetime | None = None
    judged_only: bool = False
    """True if the answer is free text, which a comparison of words cannot score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """Sessions, oldest first, and the questions about them."""

    id: str
    """Unique in its dataset."""
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]
    speakers: tuple[str, ...] = field(default=())
    """The names in order of appearance, without the empty one."""

    def turns(self) -> Iterator[Turn]:
        """Yields all turns, oldest first."""
        for session in self.sessions:
            yield from session.turns

    def questions_with_evidence(self) -> tuple[Question, ...]:
        """Returns the questions on which search can be scored."""
        return tuple(question for question in self.questions if question.evidence)


class DatasetInvalid(Exception):
    """A file does not contain dialogues in a known format. The text names file and field, or line and column."""
