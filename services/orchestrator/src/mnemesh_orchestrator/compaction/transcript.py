"""A conversation as text: the transcript for a summary model, and the digest that needs none."""

from collections.abc import Iterator, Sequence
from typing import Final

from mnemesh_types.messages import ImagePart, Message, Role

CLIPPED: Final = "... [summary truncated to fit]"
SUMMARY_NOTE: Final = (
    "Note: prior messages have been hidden from view due to conversation memory constraints.\n"
    "The following is a summary of the previous messages:\n "
)
_EARLIER_NOTES: Final = "earlier notes"
_MAX_LINE_CHARACTERS: Final = 6_000
_LINE_LIMITS: Final = (_MAX_LINE_CHARACTERS, 2_000, 600)
_DIGEST_LINE: Final = 240
_DIGEST_HEAD: Final = "No model could be asked for a summary; these are excerpts. Search your messages for the rest."
_LEFT_OUT: Final = "\n[... {} characters are left out here ...]\n"


def transcript(messages: Sequence[Message], limit: int | None = None) -> str:
    """Returns the messages as lines, oldest first, in about `limit` characters. The middle is left out if needed."""
    text = "\n".join(_lines(messages, _MAX_LINE_CHARACTERS))
    return text if limit is None else without_middle(text, limit)


def transcript_lines(messages: Sequence[Message], max_characters: int, limit: int) -> list[str]:
    """Returns the messages as lines of at most `longest` characters. Longer ones are split.

    If all of them exceed `limit` characters, each is shortened before any is left out.
    """
    for line_limit in _LINE_LIMITS:
        lines = list(_lines(messages, line_limit))
        if sum(map(len, lines)) <= limit:
            break
    return [line[start : start + max_characters] for line in lines for start in range(0, len(line), max_characters)]


def with_notes(notes: str, text: str, limit: int) -> str:
    """Returns a part of a transcript after the notes on what precedes it, in about `limit` characters.

    The notes use at most a third of them.
    """
    if not notes:
        return without_middle(text, limit)
    head = f"{_EARLIER_NOTES}: {without_middle(notes, limit // 3)}"
    return f"{head}\n{without_middle(text, max(1, limit - len(head)))}"


def without_middle(text: str, limit: int) -> str:
    """Returns the text, or its beginning and end if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return text[:head] + _LEFT_OUT.format(len(text) - limit) + text[-tail:]


def digest(messages: Sequence[Message], limit: int) -> str:
    """Returns excerpts that replace a summary if no model writes one. The same messages give the same text.

    Earlier notes keep up to half of the `limit` in characters. The latest lines fill the rest.
    """
    earlier = [summary_text(message) for message in messages if message.role is Role.SUMMARY]
    lines = list(_lines([message for message in messages if message.role is not Role.SUMMARY], _DIGEST_LINE))
    head = [_DIGEST_HEAD]
    if earlier:
        text = earlier[-1].removeprefix(_DIGEST_HEAD).lstrip("\n")
        head.append(without_middle(text, limit // 2))
    capacity = limit - sum(len(part) + 1 for part in head)
    kept: list[str] = []
    for line in reversed(lines):
        capacity -= len(line) + 1
        if capacity < 0:
            break
        kept.append(line)
    return "\n".join((*head, *reversed(kept)))[:limit]


def summary_text(message: Message) -> str:
    """Returns the text of a summary message, without the note that introduces it."""
    return message.text.removeprefix(SUMMARY_NOTE)


def clipped(text: str, characters: int) -> str:
    """Returns the text, or its first characters and a mark that it was longer."""
    return text if len(text) <= characters else text[:characters] + CLIPPED


def _lines(messages: Sequence[Message], max_characters: int) -> Iterator[str]:
    for message in messages:
        speaker = _EARLIER_NOTES if message.role is Role.SUMMARY else message.name or message.role.value
        text = summary_text(message) if message.role is Role.SUMMARY else message.text
        if text.strip():
            limit = max_characters if message.role is not Role.SUMMARY else max(max_characters, len(text))
            yield f"{speaker}: {_short(text, limit)}"
        for part in message.content:
            if isinstance(part, ImagePart):
                yield f"{speaker}: [a picture]"
        for call in message.tool_calls:
            yield f"{speaker} calls {call.name}({_short(call.arguments, max_characters)})"
        for returned in message.tool_returns:
            yield f"{returned.name} returned ({returned.status.value}): {_short(returned.text, max_characters)}"


def _short(text: str, max_characters: int) -> str:
    return text if len(text) <= max_characters else f"{text[:max_characters]}…"
