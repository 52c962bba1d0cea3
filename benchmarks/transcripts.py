"""Reads the dialogues of a file for the quality benchmarks (benchmarks.datasets lists the formats)."""

from pathlib import Path

from benchmarks import datasets as data
from benchmarks.datasets import read_dialogues
from benchmarks.dialogues import Dialogue, Question, Turn, dialogues


def chosen(source: str, seed: int) -> tuple[Dialogue, ...]:
    """Returns generated dialogues if `source` is a number, otherwise the dialogues of that file."""
    return dialogues(int(source), seed) if source.isdecimal() else transcripts(Path(source))


def transcripts(path: Path) -> tuple[Dialogue, ...]:
    """Returns the dialogues of a file, with the questions that have evidence. Raises DatasetInvalid."""
    return tuple(map(_dialogue, read_dialogues(path)))


def _dialogue(read: data.Dialogue) -> Dialogue:
    numbers: dict[str, int] = {}
    turns: list[Turn] = []
    for session, each in enumerate(read.sessions):
        for turn in each.turns:
            numbers[turn.id] = len(turns)
            first = turn.role == "user"
            turns.append(Turn(len(turns), session, turn.speaker or turn.role, first, turn.text, turn.said_at))
    questions = tuple(
        Question(question.category, question.text, frozenset(numbers[id_] for id_ in question.evidence))
        for question in read.questions_with_evidence()
    )
    return Dialogue(read.speakers or ("user", "assistant"), tuple(turns), questions)
