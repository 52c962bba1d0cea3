"""Reads a file of dialogues: recognises its format and checks what all formats have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mnemesh_retrieval.tuning.dialogues import DatasetInvalid, Dialogue
from mnemesh_retrieval.tuning.formats import locomo, longmemeval, native
from mnemesh_retrieval.tuning.formats.fields import Field

FORMATS: Final = "a list of LoCoMo samples, a list of LongMemEval questions, or an object with dialogues"


def read_dialogues(path: Path) -> tuple[Dialogue, ...]:
    """Returns the dialogues of a JSON file, or of a JSON Lines file with one sample a line (`.jsonl`).

    The format is recognised by the fields of the first sample: `haystack_sessions` for LongMemEval, `conversation` for
    LoCoMo, otherwise the format of `native.py`.

    Raises:
        DatasetInvalid: the file cannot be read, is not JSON, has no dialogues, or a field of it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetInvalid(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    samples = list(_lines(path.name, text) if path.suffix == ".jsonl" else _samples(path.name, text))
    if not samples:
        raise DatasetInvalid(f"{path.name} has no dialogues. Expected {FORMATS}.")
    read = _reader(samples[0])
    dialogues = tuple(read(sample, number) for number, sample in enumerate(samples))
    seen: set[str] = set()
    for sample, dialogue in zip(samples, dialogues, strict=True):
        if dialogue.id in seen:
            raise sample.invalid(f"has the id {dialogue.id!r} of an earlier dialogue")
        seen.add(dialogue.id)
    return dialogues


def _reader(sample: Field) -> Callable[[Field, int], Dialogue]:
    if sample.get("haystack_sessions") is not None:
        return longmemeval.dialogue
    if sample.get("conversation") is not None:
        return locomo.dialogue
    if sample.get("sessions") is not None:
        return native.dialogue
    raise sample.invalid(f"has none of the fields haystack_sessions, conversation and sessions. Expected {FORMATS}")


def _samples(name: str, text: str) -> Iterator[Field]:
    whole = Field(_parsed(name, text, 1), name)
    if isinstance(whole.value, list):
        return (Field(value, f"{name}: [{number}]") for number, value in enumerate(whole.value))
    if isinstance(whole.value, dict) and "dialogues" not in whole.value and _is_sample(whole.value):
        return iter((whole,))
    return whole["dialogues"].items()


def _is_sample(value: dict[str, Any]) -> bool:
    return bool(value.keys() & {"haystack_sessions", "conversation", "sessions"})


def _lines(name: str, text: str) -> Iterator[Field]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield Field(_parsed(name, line, number), f"{name}: line[{number}]")


def _parsed(name: str, text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise DatasetInvalid(f"{name} is not JSON at line {line}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise DatasetInvalid(f"{name} is nested too deeply.") from None
