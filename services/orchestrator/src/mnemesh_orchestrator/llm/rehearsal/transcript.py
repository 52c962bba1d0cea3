"""Reads the transcript of another agent's conversation: who said what, line by line."""

import json
import re
from dataclasses import dataclass
from typing import Final

_AGE: Final = r"(?:\((?P<{0}>Older|Newer)\)\s*)?"
_LINE: Final = re.compile(
    rf"^\s*{_AGE.format('before')}(?:(?P<number>\d{{1,9}})[.:)]\s*)?{_AGE.format('after')}"
    r"(?P<role>user|assistant|tool|system|approval): ?(?P<text>.*)$"
)
_HEADING: Final = re.compile(r"^\s*\((?P<age>Older|Newer)\)[^\w]*$")
_INTRODUCTION: Final = re.compile(
    r"<system-reminder>.*?</system-reminder>\s*(?:^Messages:\s*$)?", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """A line of a transcript. `number` and `is_older` are of transcripts for voice agents.

    `date` is the day on which a user wrote it (YYYY-MM-DD), if the transcript has it.
    """

    role: str
    text: str
    number: int | None = None
    is_older: bool = False
    date: str | None = None


def transcript_lines(text: str) -> tuple[TranscriptLine, ...]:
    """Returns the lines of the transcript in a message, without the introduction in front of it."""
    text = _INTRODUCTION.sub("", text)
    lines: list[tuple[re.Match[str], bool, list[str]]] = []
    is_older = False
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            is_older = heading["age"] == "Older"
        elif match := _LINE.match(line):
            age = match["before"] or match["after"]
            lines.append((match, age == "Older" if age else is_older, [match["text"]]))
        elif lines:
            lines[-1][2].append(line)
    return tuple(_line(match, older, "\n".join(parts).strip()) for match, older, parts in lines)


def _line(match: re.Match[str], is_older: bool, text: str) -> TranscriptLine:
    number = int(match["number"]) if match["number"] else None
    text, date = _unpacked(text)
    return TranscriptLine(match["role"], text, number, is_older, date)


def _unpacked(text: str) -> tuple[str, str | None]:
    """Returns the text in the envelope of a user message and its date, or the text as it is."""
    if text.startswith("{"):
        try:
            envelope = json.loads(text)
        except ValueError:
            return text, None
        if isinstance(envelope, dict) and envelope.get("type") == "user_message":
            return str(envelope.get("message", "")), str(envelope.get("time", ""))[:10] or None
    return text, None
