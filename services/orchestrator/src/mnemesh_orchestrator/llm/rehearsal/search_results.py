"""Converts the results of search tools to lines of a reply."""

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from mnemesh_orchestrator.llm.rehearsal.sentences import AskArchive, AskConversation, parse_intents

_MAX_RESULTS: Final = 3
_MAX_LINE_CHARACTERS: Final = 300


def recall_results(topic: str, returned: str, question: str) -> str:
    """Returns the lines of the conversation about a topic, without the question and the rehearsal's own replies."""
    rows = _rows(returned)
    if rows is None:
        return f"The search of our conversation for {topic} returned: {_short(returned)}"
    matches = [row for row in rows if not _is_echo(_content(row), question)]
    if not matches:
        return f"I find nothing that you said about {topic} in our conversation."
    lines = [f"- {_prefix(row)}{_short(_content(row))}" for row in matches[:_MAX_RESULTS]]
    return "\n".join((f"In our conversation (recall memory) I find about {topic}:", *lines))


def archive_results(topic: str, returned: str) -> str:
    """Returns the lines of archival memory about a topic."""
    rows = _rows(returned)
    if rows is None:
        return f"The search of archival memory for {topic} returned: {_short(returned)}"
    if not rows:
        return f"Archival memory holds nothing about {topic}."
    lines = [f"- {_prefix(row)}{_short(_content(row))}" for row in rows[:_MAX_RESULTS]]
    return "\n".join((f"In archival memory I find about {topic}:", *lines))


def _rows(returned: str) -> list[Mapping[str, Any]] | None:
    """Returns the results, plain or under "results", as JSON or as a Python list; None if they cannot be read."""
    decoded: object = None
    try:
        decoded = json.loads(returned)
    except (ValueError, RecursionError):
        try:
            decoded = ast.literal_eval(returned)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return [] if returned.strip().lower().startswith(("no results", "none")) else None
    if isinstance(decoded, Mapping):
        decoded = decoded.get("results")
    return [row for row in decoded if isinstance(row, Mapping)] if isinstance(decoded, list | tuple) else None


def _content(row: Mapping[str, Any]) -> str:
    text = next((str(row[key]) for key in ("content", "text", "message") if row.get(key)), "")
    if text.startswith("{"):
        try:
            text = str(json.loads(text).get("message", text))
        except (ValueError, AttributeError, RecursionError):
            return text
    return text


def _is_echo(content: str, question: str) -> bool:
    if not content or content.strip() == question.strip() or content.startswith("[mnemesh/rehearsal"):
        return True
    intents = parse_intents(content)
    return bool(intents) and all(isinstance(intent, AskConversation | AskArchive) for intent in intents)


def _prefix(row: Mapping[str, Any]) -> str:
    moment = str(row.get("timestamp") or "")[:10]
    speaker = str(row.get("role") or "")
    return "".join(f"{part}, " for part in (moment, speaker) if part)[:-2] + ": " if moment or speaker else ""


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"
