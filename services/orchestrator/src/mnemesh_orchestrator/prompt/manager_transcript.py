"""The messages of a manager as its sleeptime partners read them: one line per part, in one of three forms.

Pure functions: the same messages give the same text.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from mnemesh_types.messages import (
    ApprovalDecision,
    Approve,
    ContentPart,
    Deny,
    ImagePart,
    Message,
    ReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
)

from mnemesh_orchestrator.prompt.assembly import package_user_message

_IMAGE: Final = "[Image Here]"
_SPEAKING_TOOL: Final = "send_message"
_NO_RESULT: Final = frozenset({"", "None"})
_LEFT_OUT: Final = " [... {} bytes are left out here ...] "
_LINE_OVERHEAD: Final = 24
"""Bytes of a line besides its text: the line break, and the index and the mark of a voice transcript."""
_REMINDER: Final = """<system-reminder>
You are not the primary agent of this conversation. The messages below were exchanged between the primary agent and its
user. They are a record: the primary agent has answered them, and nobody reads a reply of yours. Your task is to keep
the memory of the primary agent up to date. Use your memory tools to write down what it should know later, and to
correct what is no longer true. Write absolute dates. The messages of the user say when they were sent.
</system-reminder>

Messages:
"""


class TranscriptForm(StrEnum):
    """The form of a transcript."""

    BARE = "bare"
    """The lines alone."""
    WRAPPED = "wrapped"
    """The lines after a reminder of what to do with them."""
    MARKED = "marked"
    """Numbered lines that are marked as older or newer, for store_memories."""


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """The lines of one message."""

    message: Message
    lines: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes of the lines."""
        return sum(len(line.encode()) + _LINE_OVERHEAD for line in self.lines)

    def clipped(self, size: int) -> "TranscriptEntry":
        """Returns the entry with lines of at most `size` bytes together. A note says how much is left out."""
        if self.size <= size:
            return self
        share = max(1, size // len(self.lines) - _LINE_OVERHEAD)
        return replace(self, lines=tuple(_clipped(line, share) for line in self.lines))


def transcript_entry(message: Message, time_zone: str) -> TranscriptEntry | None:
    """Returns the lines of a message; None if partners do not see it.

    System messages, summaries and the events of mnemesh (login, heartbeats, alerts) are not words of the conversation.

    Args:
        message: A message of the manager.
        time_zone: The manager's zone, in which the user's messages are dated.
    """
    lines = tuple(_lines(message, time_zone))
    return TranscriptEntry(message, lines) if lines else None


@dataclass(frozen=True, slots=True)
class TranscriptPart:
    """A part of a transcript with the words of one sender, and what follows them. None is a sender without an id."""

    text: str
    sender_id: str | None = None


def render_transcript(
    entries: Sequence[TranscriptEntry], form: TranscriptForm, newer_after: int | None = None
) -> tuple[TranscriptPart, ...]:
    """Returns a transcript, in one part unless it has the words of several senders.

    Each part becomes a message of its sender, so that the erasure of a sender erases its words here, too.

    Args:
        entries: The messages, oldest first.
        newer_after: MARKED: the sequence id up to which messages are older; None if all are.
    """
    parts: list[tuple[str | None, list[str]]] = []
    index = 0
    for entry in entries:
        sender_id = entry.message.sender_id
        if not parts or (sender_id is not None and parts[-1][0] not in (None, sender_id)):
            parts.append((sender_id, []))
        elif sender_id is not None:
            parts[-1] = (sender_id, parts[-1][1])
        for line in entry.lines:
            mark = "Older" if is_older(entry.message, newer_after) else "Newer"
            # A line break would start another line for the tool that reads the numbers.
            is_marked = form is TranscriptForm.MARKED
            parts[-1][1].append(f"{index}. ({mark}) {' '.join(line.split())}" if is_marked else line)
            index += 1
    texts = ["\n".join(lines) for _, lines in parts]
    if texts and form is TranscriptForm.WRAPPED:
        texts[0] = _REMINDER + texts[0]
    return tuple(TranscriptPart(text, sender_id) for text, (sender_id, _) in zip(texts, parts, strict=True))


def is_older(message: Message, newer_after: int | None) -> bool:
    """Returns whether a message leaves the window of a voice agent."""
    return newer_after is None or message.sequence_id <= newer_after


def _lines(message: Message, time_zone: str) -> Iterator[str]:
    match message.role:
        case Role.USER:
            yield from _user_lines(message, time_zone)
        case Role.ASSISTANT:
            texts = (*map(_assistant_text, message.content), *map(_call_text, message.tool_calls))
            yield from (f"assistant: {text}" for text in texts if text)
        case Role.TOOL:
            texts = tuple(map(_return_text, message.tool_returns))
            yield from (f"assistant: Tool call returned {text}" for text in texts if text not in _NO_RESULT)
        case Role.APPROVAL:
            yield from filter(None, map(_decision_text, message.approval_decisions))


def _user_lines(message: Message, time_zone: str) -> Iterator[str]:
    text = message.text
    if text and message.is_from_user:
        yield f"user: {package_user_message(text, message.created_at, time_zone, message.name)}"
    for part in message.content:
        if isinstance(part, ImagePart):
            yield f"user: {_IMAGE}"


def _assistant_text(part: ContentPart) -> str:
    match part:
        case TextPart():
            return part.text
        case ReasoningPart():
            return f"<thinking>{part.text}</thinking>" if part.text else ""
        case SummarizedReasoningPart(summaries=summaries) if summaries:
            return f"<thinking>{' '.join(summaries)}</thinking>"
        case ImagePart():
            return _IMAGE
        case _:
            return ""


def _call_text(call: ToolCall) -> str:
    """Returns the words of the speaking tool, or the name of another tool."""
    if call.name == _SPEAKING_TOOL:
        try:
            words = json.loads(call.arguments)["message"]
        except (ValueError, KeyError, TypeError):
            words = None
        if isinstance(words, str):
            return words
    return f"Calling tool {call.name}"


def _return_text(returned: ToolReturn) -> str:
    images = (_IMAGE for part in returned.content if isinstance(part, ImagePart))
    return "\n".join(text for text in (returned.text, *images) if text)


def _decision_text(decision: ApprovalDecision) -> str:
    match decision:
        case Approve():
            return "[User approved]"
        case Deny(reason=reason):
            return f"[User rejected: {reason}]" if reason else "[User rejected]"
        case _:
            return ""


def _clipped(line: str, size: int) -> str:
    data = line.encode()
    if len(data) <= size:
        return line
    kept = max(0, size - len(_LEFT_OUT) - len(str(len(data))))
    head, tail = kept - kept // 3, kept // 3
    end = data[len(data) - tail :] if tail else b""
    return data[:head].decode(errors="ignore") + _LEFT_OUT.format(len(data) - head - tail) + end.decode(errors="ignore")
