"""The JSON envelopes in which a model sees user messages, tool returns and mnemesh's own events.

User messages and tool returns are stored without an envelope and packaged when a request is rendered. Events are stored
with their envelope, in a message that is marked as an event, and are not packaged again.
"""

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from mnemesh_types.messages import Message, ToolStatus

NON_USER_MSG_PREFIX: Final = "[This is an automated system message hidden from the user] "
TIME_FORMAT: Final = "%Y-%m-%d %I:%M:%S %p %Z%z"

_dumps: Final = json.JSONEncoder(ensure_ascii=False).encode
_ENVELOPE: Final = re.compile(r'\{\s*"type"\s*:\s*"(?:heartbeat|login|system_alert|user_message)"')
_STATUS: Final = {ToolStatus.SUCCESS: "OK", ToolStatus.ERROR: "Failed"}


def package_user_message(text: str, created_at: datetime, time_zone: str, name: str | None = None) -> str:
    """Packages a user message with the agent's local time, and the speaker's name if it is known."""
    envelope = {"type": "user_message", "message": text, "time": local_time(created_at, time_zone)}
    return _dumps(envelope if name is None else {**envelope, "name": name})


def package_tool_return(status: ToolStatus, text: str, created_at: datetime, time_zone: str) -> str:
    """Packages the result of a tool."""
    return _dumps({"status": _STATUS[status], "message": text, "time": local_time(created_at, time_zone)})


def plain_user_message(text: str, created_at: datetime, time_zone: str, name: str | None = None) -> str:
    """Returns a user message as plain text. One that contains the envelope of an event is packaged nevertheless."""
    if _ENVELOPE.search(text):
        return package_user_message(text, created_at, time_zone, name)
    return text if name is None else f"{name}: {text}"


def plain_tool_return(status: ToolStatus, text: str) -> str:
    """Returns the result of a tool as plain text."""
    return f"Error: {text}" if status is ToolStatus.ERROR and not text.startswith("Error") else text


def time_of_last_message(created_at: datetime, time_zone: str) -> str:
    """Returns the line of the system message that replaces the times in envelopes."""
    return f"The last message of the user was sent at {local_time(created_at, time_zone)}."


def heartbeat(reason: str, now: datetime, time_zone: str) -> str:
    """Returns the event that gives control back to the model. `reason` has no prefix that marks it as automated."""
    return _dumps({"type": "heartbeat", "reason": NON_USER_MSG_PREFIX + reason, "time": local_time(now, time_zone)})


def login_event(now: datetime, time_zone: str, last_login: str = "Never (first login)") -> str:
    """Returns the event that a new agent's window starts with."""
    return _dumps({"type": "login", "last_login": last_login, "time": local_time(now, time_zone)})


def system_alert(message: str, now: datetime, time_zone: str) -> str:
    """Returns a message of the system to the model, such as the summary of a compaction."""
    return _dumps({"type": "system_alert", "message": message, "time": local_time(now, time_zone)})


def local_time(moment: datetime, time_zone: str) -> str:
    """Returns an instant in the agent's zone, such as "2026-01-20 02:13:45 PM PST-0800"."""
    return moment.astimezone(_zone(time_zone)).strftime(TIME_FORMAT)


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Zones are checked where they enter the system. A zone that this host does not know must not break an agent:
        # the rendered time says that it is UTC.
        return UTC


def senders_of(messages: Iterable[Message]) -> tuple[str | None, ...]:
    """Returns the sender of each message that a user sent; None for one without. Events have no sender."""
    return tuple(message.sender_id for message in messages if message.is_from_user)
