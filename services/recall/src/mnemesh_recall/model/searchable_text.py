"""What a message says, for the purpose of finding it again: its words without packaging, or nothing at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from mnemesh_recall.model.messages import ContentPart, Message, Role, TextPart

SEND_MESSAGE: Final = "send_message"
CONVERSATION_SEARCH: Final = "conversation_search"
SEARCHES: Final = frozenset({CONVERSATION_SEARCH, "search_memory", "episodic_memory_search"})
_ARTEFACTS: Final = frozenset({SEND_MESSAGE, *SEARCHES})
_EVENTS: Final = frozenset({"heartbeat", "login", "system_alert"})

SEARCHABLE_ROLES: Final = (Role.USER, Role.ASSISTANT, Role.TOOL)

_json: Final = msgspec.json.Decoder()


def searchable_text(message: Message) -> str:
    """The searchable words of a message; "" where it has none.

    System messages, summaries, approvals, failed steps, heartbeats and other events say nothing. A packed user message
    says its inner text; an assistant message its text and what it sent by send_message; a tool message what its tools
    returned, except for those that only repeat: send_message and searches.
    """
    if message.is_err:
        return ""
    match message.role:
        case Role.USER:
            said = _user(_texts(message.content))
        case Role.ASSISTANT:
            said = _assistant(message)
        case Role.TOOL:
            said = _tool(message)
        case _:
            return ""
    return said.replace("\0", " ").strip()


def is_event(message: Message) -> bool:
    """Whether a user's message is an event in the user's name: a heartbeat, a login, an alert."""
    packed = _unpacked(_texts(message.content))
    return packed is not None and isinstance(kind := packed.get("type"), str) and kind in _EVENTS


def _texts(parts: Iterable[ContentPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart) and part.text)


def _user(text: str) -> str:
    packed = _unpacked(text)
    if packed is None or not isinstance(kind := packed.get("type"), str):
        return text
    if kind in _EVENTS:
        return ""
    inner = packed.get("message")
    return inner if isinstance(inner, str) else text


def _assistant(message: Message) -> str:
    searches = any(call.name in SEARCHES for call in message.tool_calls)
    words = [] if searches else [_texts(message.content)]
    for call in message.tool_calls:
        if call.name == SEND_MESSAGE and isinstance(sent := (_unpacked(call.arguments) or {}).get("message"), str):
            words.append(sent)
    return "\n".join(word for word in words if word)


def _tool(message: Message) -> str:
    if not message.tool_returns:
        return "" if message.name in _ARTEFACTS else _returned(_texts(message.content))
    returned = (_returned(_texts(item.content)) for item in message.tool_returns if item.name not in _ARTEFACTS)
    return "\n".join(word for word in returned if word)


def _returned(text: str) -> str:
    packed = _unpacked(text)
    if packed is None or "status" not in packed or "message" not in packed:
        return text
    inner = packed["message"]
    return inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()


def _unpacked(text: str) -> dict[str, Any] | None:
    """The JSON object that the text is, if it is one."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = _json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
