"""The text by which a message is found."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from mnemesh_retrieval.words.sparse import split_speaker
from mnemesh_types.messages import ContentPart, Message, Role, TextPart

SEND_MESSAGE: Final = "send_message"
CONVERSATION_SEARCH: Final = "conversation_search"
SEARCH_TOOLS: Final = frozenset({CONVERSATION_SEARCH, "search_memory", "episodic_memory_search"})
_REPEATING_TOOLS: Final = frozenset({SEND_MESSAGE, *SEARCH_TOOLS})

SEARCHABLE_ROLES: Final = (Role.USER, Role.ASSISTANT, Role.TOOL)

_json: Final = msgspec.json.Decoder()


def searchable_text(message: Message) -> str:
    """Returns the searchable text of a message; "" if the message must not be found.

    System messages, summaries, approvals, failed steps, heartbeats and other events have none. An assistant message has
    its text and the text sent by send_message; a tool message the results of its tools, except for those that only
    repeat other messages (send_message and searches).
    """
    if message.is_err or message.is_event:
        return ""
    match message.role:
        case Role.USER:
            text = _texts(message.content)
        case Role.ASSISTANT:
            text = _assistant_text(message)
        case Role.TOOL:
            text = _tool_text(message)
        case _:
            return ""
    return text.replace("\0", " ").strip()


def speaker_of(message: Message, text: str) -> str:
    """Returns the speaker of a message, or "" if it has none: its name, or the one at the beginning of its text.

    Args:
        message: the message.
        text: its searchable text.
    """
    return message.name or split_speaker(text)[0]


def embedded_text(message: Message) -> str:
    """Returns the text whose vector finds a message: "Name: text" if its speaker has a name."""
    text = searchable_text(message)
    is_spoken = message.role in (Role.USER, Role.ASSISTANT)
    return f"{message.name}: {text}" if text and is_spoken and message.name and not split_speaker(text)[0] else text


def _texts(parts: Iterable[ContentPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart) and part.text)


def _assistant_text(message: Message) -> str:
    is_search = any(call.name in SEARCH_TOOLS for call in message.tool_calls)
    texts = [] if is_search else [_texts(message.content)]
    for call in message.tool_calls:
        if call.name == SEND_MESSAGE and isinstance(sent := (_unpack(call.arguments) or {}).get("message"), str):
            texts.append(sent)
    return "\n".join(text for text in texts if text)


def _tool_text(message: Message) -> str:
    if not message.tool_returns:
        return "" if message.name in _REPEATING_TOOLS else _texts(message.content)
    results = (_texts(item.content) for item in message.tool_returns if item.name not in _REPEATING_TOOLS)
    return "\n".join(text for text in results if text)


def _unpack(text: str) -> dict[str, Any] | None:
    """Returns the JSON object that the text contains; None if it is not one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = _json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
