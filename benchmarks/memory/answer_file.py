"""The answers of a run in a file of JSON lines, so that an interrupted run continues."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class AnswersOfAnotherRun(Exception):
    """The file has answers of another dataset, model or tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a model to a question, and its judgement."""

    dialogue: str
    question: str
    text: str | None
    """None if the turn failed."""
    error: str | None = None
    is_correct: bool | None = None
    """The judgement; None without a judge or if the judge gave none."""
    seconds: float = 0.0


class AnswerFile:
    """Appends answers. Every answer is on disk when `add` returns."""

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        """Opens or creates a file.

        Args:
            path: the file.
            run: what the answers depend on: dataset, model, judge, tier.

        Raises:
            AnswersOfAnotherRun: the file exists and was begun by another run.
        """
        self._path = path
        self.answers: dict[tuple[str, str], Answer] = {}
        """By dialogue and question. Failed answers of an earlier run are left out, so that they are repeated."""
        head = {"run": dict(run)}
        if not path.exists() or not path.read_bytes():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(head) + "\n")
            return
        lines = _lines(path)
        if next(lines, None) != head:
            raise AnswersOfAnotherRun(f"{path} has answers of another dataset, model, judge or tier. Move it.")
        for line in lines:
            answer = Answer(**line)
            if answer.text is not None:
                self.answers[answer.dialogue, answer.question] = answer

    def add(self, answer: Answer) -> None:
        self.answers[answer.dialogue, answer.question] = answer
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(answer)) + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines. An incomplete one at the end, of a process that was killed, is removed from the file."""
    content = path.read_text()
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        path.write_text(whole)
    for line in whole.splitlines():
        yield json.loads(line)
