"""The state of the current turn: the calls since the last user message, and their results."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnemesh_types.messages import Message, Role, ToolReturn, ToolStatus

from mnemesh_orchestrator.llm.history import arguments_object
from mnemesh_orchestrator.prompt.packaging import event_type

_DEMANDS = (
    re.compile(r"must call ([\w\s,'\"`]+?) at least once"),
    re.compile(r"expects these tools: \[([^\]]*)\] to be called"),
)


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call of this turn. `text` is its result; None if there is none."""

    tool: str
    arguments: Mapping[str, Any]
    is_error: bool
    text: str | None


@dataclass(frozen=True, slots=True)
class Turn:
    """The user's text, the calls so far, and the tools that the loop still requires."""

    said: str
    made: tuple[MadeCall, ...]
    demanded: tuple[str, ...]


def current_turn(messages: tuple[Message, ...]) -> Turn:
    """Returns the turn that the last user message started. Consecutive user messages count as one."""
    spoken = [place for place, message in enumerate(messages) if _is_spoken(message)]
    last = spoken[-1] if spoken else 0
    first = last
    while first - 1 in spoken:
        first -= 1
    said = "\n".join(message.text for message in messages[first : last + 1] if _is_spoken(message))
    after = messages[last:]
    returns = {returned.tool_call_id: returned for message in after for returned in message.tool_returns}
    made = tuple(
        _made(call.name, call.arguments, returns.get(call.id))
        for message in after
        if message.role is not Role.APPROVAL  # It repeats calls.
        for call in message.tool_calls
    )
    return Turn(said, made, _demanded(after))


def _is_spoken(message: Message) -> bool:
    return message.role is Role.USER and event_type(message.text) is None


def _made(name: str, arguments: str, returned: ToolReturn | None) -> MadeCall:
    is_error = returned is not None and returned.status is ToolStatus.ERROR
    return MadeCall(name, arguments_object(arguments), is_error, None if returned is None else returned.text)


def _demanded(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """Returns the tools that an event of this turn still requires."""
    names: list[str] = []
    for message in messages:
        if message.role is Role.USER and not _is_spoken(message):
            for demand in _DEMANDS:
                for found in demand.finditer(message.text):
                    names += re.findall(r"\w+", found[1])
    return tuple(dict.fromkeys(names))
