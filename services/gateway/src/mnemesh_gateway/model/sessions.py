"""Sessions: which conversation of an agent a request belongs to, and the overlay of its instructions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from mnemesh_gateway.errors import InvalidRequest

OVERLAY_LABEL: Final = "proxy_system_overlay"
OVERLAY_NAME: Final = "Proxy System Overlay"
OVERLAY_DESCRIPTION: Final = (
    "Instructions of the application through which this conversation takes place. They apply to this conversation only."
)
_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The identity of a session within an agent: the client's id, or the hash of the instructions."""

    agent_id: str
    name: str
    """The key of the conversation, such as `session/web-1` or `system/<sha256>`."""
    is_named: bool
    """The client gave the id. Such a session can change its instructions."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """The instructions of a session, cleaned, and their hash."""

    text: str
    sha256: str


def session_key(agent_id: str, session_id: str | None, instructions: str | None) -> SessionKey | None:
    """Returns the session of a request; None is the agent's default conversation.

    Raises:
        InvalidRequest: The client's id is not valid.
    """
    if session_id is not None:
        if not _SESSION_ID.fullmatch(session_id):
            raise InvalidRequest("X-Session-Id must have 1 to 200 visible ASCII characters.", "X-Session-Id")
        return SessionKey(agent_id, f"session/{session_id}", is_named=True)
    if instructions is None:
        return None
    return SessionKey(agent_id, f"system/{overlay_of(instructions).sha256}", is_named=False)


def overlay_of(instructions: str) -> Overlay:
    """Returns the overlay for instructions. Carriage returns and NUL characters are removed."""
    text = instructions.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return Overlay(text, hashlib.sha256(text.encode("utf-8", "replace")).hexdigest())


def preface(overlay: Overlay) -> str:
    """Returns the message that shows the instructions if the overlay cannot be written."""
    return f"[{OVERLAY_NAME}]: {overlay.text}"
