"""Requests that a front end makes for itself: titles, tags, suggested questions. They are no part of a conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_gateway.model.chat import Format, Part, Settings

_EDGE: Final = 600
"""The characters at the beginning and at the end of a text in which a task is recognised."""
_OPEN_WEBUI: Final = re.compile(r"\A\s*### Task:\s.*(<chat_history>|### Chat History:)", re.DOTALL)
"""Questions about documents begin with `### Task:` as well, but they have no chat history: they are messages."""
_MESSAGES: Final = re.compile(
    r"\A\s*(?:"
    r"### Task:\s+You are an autocompletion system\b"
    r"|You have been provided with a set of responses from various models to the latest user query\b"
    r"|Your task is to reflect the speaker's likely facial expression through a fitting emoji\b"
    r"|Summarize the discussion briefly in \d+ words or less to use as a prompt for future context\b"
    r")",
    re.IGNORECASE,
)
"""The beginnings of messages that front ends write: completion of what is typed, the answers of several models joined,
an emoji for a message, a summary for later."""
_TOOL_PROMPT: Final = re.compile(
    r"\A\s*Available Tools:.*\bYour task is to choose and return the correct tool\(s\) from the list", re.DOTALL
)
"""Instructions that ask for tool calls as text. Their message is the query, as `Query: …`."""
_QUERY: Final = re.compile(r"\s*(Query|History)\s*:")
_INSTRUCTIONS: Final = re.compile(
    r"\A\s*You are (?:a|an) (?:summarization AI\. Summarize the user's request into a single short sentence"
    r"|(?:AI )?(?:conversation |chat |thread )?titles? (?:generator|assistant))\b",
    re.IGNORECASE,
)
"""Instructions whose whole purpose is a title, whatever the message is."""
_TITLES: Final = (
    re.compile(r"\banaly[sz]e (this|the) conversation and provide\b[\s\S]{0,200}\btitle\b", re.IGNORECASE),
    re.compile(r"\breply with a title for the (chat|conversation)\b", re.IGNORECASE),
    re.compile(r"\bsummari[sz]e the given session as a \d+-word title\b", re.IGNORECASE),
    re.compile(
        r"\b(generate|create|write|provide|give|suggest|return|make)\b[^.\n]{0,60}\btitle\b[^.\n]{0,60}"
        r"\b(conversation|chat|dialogue|discussion|thread|following messages?)\b",
        re.IGNORECASE,
    ),
    re.compile(r"\bgive (this|the) (conversation|chat) a (name|title)\b", re.IGNORECASE),
    re.compile(
        r"\bsummari[sz]e\b[^.\n]{0,60}\b(conversation|chat|dialogue)\b[^.\n]{0,60}\b(title|name)\b", re.IGNORECASE
    ),
)
_RECORD: Final = re.compile(r"\s*(user|assistant|system)\s*:", re.IGNORECASE)
"""The beginning of a message that repeats a conversation."""


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A message of a task. `role` is `user` or `assistant`."""

    role: str
    content: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A task: the whole request, because nothing of it is known."""

    instructions: str | None
    messages: tuple[TaskMessage, ...]
    settings: Settings
    format: Format | None
    stream: bool


def is_task(header: str | None, metadata: Mapping[str, Any], texts: tuple[str, str], *, has_tools: bool) -> bool:
    """Returns whether a request is a task of the front end.

    Args:
        header: The value of X-Mnemesh-Task, which decides: `none` is no task.
        metadata: The metadata of the request, which may name a `task`.
        texts: The instructions and the last message of the user.
        has_tools: A request with tools is no task, unless header or metadata say so.
    """
    if header is not None:
        return header.strip().lower() != "none"
    if metadata.get("task"):
        return True
    if has_tools:
        return False
    instructions, last = texts
    if _MESSAGES.match(last) or _INSTRUCTIONS.match(instructions):
        return True
    if _TOOL_PROMPT.match(instructions) and _QUERY.match(last):
        return True
    # Instructions that mention titles are those of a task only if the message is the record of a conversation.
    return _asks_for_title(last) or (_asks_for_title(instructions) and _RECORD.match(last) is not None)


def _asks_for_title(text: str) -> bool:
    if _OPEN_WEBUI.match(text):
        return True
    edges = text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\n{text[-_EDGE:]}"
    return any(pattern.search(edges) for pattern in _TITLES)
