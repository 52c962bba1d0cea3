"""Sessions: which conversation of an agent a request belongs to, and the overlay of its instructions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_gateway.errors import InvalidRequest

OVERLAY_LABEL: Final = "proxy_system_overlay"
OVERLAY_NAME: Final = "Proxy System Overlay"
OVERLAY_DESCRIPTION: Final = (
    "Instructions of the application through which this conversation takes place. They apply to this conversation only."
)
SESSION_HEADER: Final = "x-session-id"
FRONT_END_HEADERS: Final = (
    "x-openwebui-chat-id",
    "x-conversation-id",
    "x-librechat-conversation-id",
    "x-chat-id",
    "x-thread-id",
    "x-litellm-session-id",
    "helicone-session-id",
)
"""The headers with which front ends and proxies name a chat, by precedence. LibreChat sends what its operator sets."""
FRONT_END_FIELDS: Final = ("chat_id", "conversation_id", "session_id", "thread_id")
"""The fields of `metadata` in which clients name a chat, by precedence."""
_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")
_NO_ID: Final = re.compile(r"(new|null|none|undefined|local|\{\{.*\}\}|\$\{.*\})?", re.IGNORECASE)
"""What front ends send for a chat without an id, and placeholders that nothing replaced."""
_WORD: Final = re.compile(r"(?<!\w)[^\W\d]+(?!\w)")
"""A word without digits: no number, date, time or version."""
_SIGNIFICANT: Final = 20_000
"""The characters at the beginning of instructions that tell them from others."""
_TIME_WORDS: Final = """
january february march april may june july august september october november december
monday tuesday wednesday thursday friday saturday sunday
jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun
januar februar märz mai juni juli oktober dezember montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag
janvier février mars avril juin juillet août septembre octobre novembre décembre
lundi mardi mercredi jeudi vendredi samedi dimanche
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
lunes martes miércoles jueves viernes sábado domingo
gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre
lunedì martedì mercoledì giovedì venerdì sabato domenica
janeiro fevereiro março maio junho julho setembro outubro novembro dezembro segunda terça quarta quinta sexta feira
januari februari maart mei juni juli augustus maandag dinsdag woensdag donderdag vrijdag zaterdag zondag
am pm utc gmt t z morning afternoon evening night
"""

_NOT_COUNTED: Final = frozenset(_TIME_WORDS.split())


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The identity of a session within an agent."""

    agent_id: str
    name: str
    """The key of the conversation, such as `session/web-1` or `system/<sha256>`."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """The instructions of a session, cleaned, and their hash."""

    text: str
    sha256: str


def client_session(headers: Mapping[str, str], metadata: Mapping[str, Any]) -> str | None:
    """Returns the name of the session that a client gives; None if it names none.

    Args:
        headers: The headers of the request, by their names in lower case.
        metadata: The metadata of the request.

    Raises:
        InvalidRequest: X-Session-Id is not valid.
    """
    session_id = headers.get(SESSION_HEADER)
    if session_id is not None:
        if not _SESSION_ID.fullmatch(session_id):
            raise InvalidRequest("X-Session-Id must have 1 to 200 visible ASCII characters.", "X-Session-Id")
        return f"session/{session_id}"
    given = [(name, headers.get(name)) for name in FRONT_END_HEADERS]
    given += [(name, metadata.get(name)) for name in FRONT_END_FIELDS]
    for name, value in given:
        if isinstance(value, str) and not _NO_ID.fullmatch(value.strip()):
            return f"{name}/{_short(value.strip())}"
    return None


def derived_session(user: str | None, instructions: str | None) -> str | None:
    """Returns the name of the session of a request whose client names none; None is the default conversation.

    The instructions count without times, dates and numbers, which front ends write into them.
    """
    if user:
        return f"user/{_short(user)}"
    if instructions is None:
        return None
    words = _WORD.findall(overlay_of(instructions[:_SIGNIFICANT]).text.lower())
    text = " ".join(word for word in words if word not in _NOT_COUNTED)
    return f"system/{hashlib.sha256(text.encode()).hexdigest()}"


def _short(value: str) -> str:
    """Returns an id as it is if it can be part of a key, otherwise its hash."""
    return value if _SESSION_ID.fullmatch(value) else hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()


def overlay_of(instructions: str) -> Overlay:
    """Returns the overlay for instructions. Carriage returns and NUL characters are removed."""
    text = instructions.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return Overlay(text, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())


def preface(overlay: Overlay) -> str:
    """Returns the message that shows the instructions if the overlay cannot be written."""
    return f"[{OVERLAY_NAME}]: {overlay.text}"
