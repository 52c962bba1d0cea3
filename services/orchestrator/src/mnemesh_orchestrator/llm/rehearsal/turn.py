"""The state of the current turn: the calls since the last user message, and their results."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnemesh_types.messages import Message, Role, ToolReturn, ToolStatus

from mnemesh_orchestrator.llm.history import arguments_object
from mnemesh_orchestrator.prompt.packaging import event_type

_REQUIREMENTS = (
    re.compile(r"must call ([\w\s,'\"`]+?) at least once"),
    re.compile(r"expects these tools: \[([^\]]*)\] to be called"),
)


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of this turn. `text` is its result; None if there is none."""

    tool: str
    arguments: Mapping[str, Any]
    is_error: bool
    text: str | None


@dataclass(frozen=True, slots=True)
class Turn:
    """The user's text, the calls so far, and the tools that the loop still requires."""

    text: str
    calls: tuple[PastCall, ...]
    required_tools: tuple[str, ...]


def current_turn(messages: tuple[Message, ...]) -> Turn:
    """Returns the turn that the last user message started. Consecutive user messages count as one."""
    user_indexes = [index for index, message in enumerate(messages) if _is_user_text(message)]
    last = user_indexes[-1] if user_indexes else 0
    first = last
    while first - 1 in user_indexes:
        first -= 1
    text = "\n".join(message.text for message in messages[first : last + 1] if _is_user_text(message))
    turn_messages = messages[last:]
    returns = {returned.tool_call_id: returned for message in turn_messages for returned in message.tool_returns}
    calls = tuple(
        _past_call(call.name, call.arguments, returns.get(call.id))
        for message in turn_messages
        if message.role is not Role.APPROVAL  # It repeats calls.
        for call in message.tool_calls
    )
    return Turn(text, calls, _required_tools(turn_messages))


def _is_user_text(message: Message) -> bool:
    return message.role is Role.USER and event_type(message.text) is None


def _past_call(name: str, arguments: str, returned: ToolReturn | None) -> PastCall:
    is_error = returned is not None and returned.status is ToolStatus.ERROR
    return PastCall(name, arguments_object(arguments), is_error, None if returned is None else returned.text)


def _required_tools(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """Returns the tools that an event of this turn still requires."""
    names: list[str] = []
    for message in messages:
        if message.role is Role.USER and not _is_user_text(message):
            for pattern in _REQUIREMENTS:
                for match in pattern.finditer(message.text):
                    names += re.findall(r"\w+", match[1])
    return tuple(dict.fromkeys(names))
