"""The state of the current turn: its input, the calls since then, and their results."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mnemesh_types.messages import Message, Role, ToolReturn, ToolStatus

from mnemesh_orchestrator.llm.history import (
    arguments_object,
)

_REQUIREMENTS = (
    re.compile(r"must call ([\w\s,'\"`]+?) at least once"),
    re.compile(r"expects these tools: \[([^\]]*)\] to be called"),
)
_AGENT_MESSAGE = re.compile(
    r"\[This message comes from the agent (?P<speaker>[^\n]+) \(id [^)\n]+\), not from the user\.[^\]]*\]\s*"
    r"(?P<text>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of this turn. `text` is its result; None if there is none."""

    tool: str
    arguments: Mapping[str, Any]
    is_error: bool
    text: str | None


@dataclass(frozen=True, slots=True)
class Words:
    """The words of another agent: to all agents of its group, or to this one. `is_direct` is true for the latter."""

    speaker: str
    text: str
    is_direct: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """The input, the words of other agents in it, the calls so far, and the tools that the loop still requires.

    `text` is what the user wrote, or what an agent asks.
    """

    text: str
    words: tuple[Words, ...]
    calls: tuple[PastCall, ...]
    required_tools: tuple[str, ...]


def current_turn(messages: tuple[Message, ...]) -> Turn:
    """Returns the turn that the last input started. Consecutive input messages count as one."""
    input_indexes = {
        index
        for index, message in enumerate(messages)
        if message.is_from_user or (index > 0 and message.role is Role.SYSTEM)
    }
    last = max(input_indexes, default=0)
    first = last
    while first - 1 in input_indexes:
        first -= 1
    inputs = messages[first : last + 1]
    words = tuple(found for message in inputs if (found := _words(message)) is not None)
    texts = [message.text for message in inputs if message.is_from_user]
    text = "\n".join([*texts, *(each.text for each in words if each.is_direct)])
    turn_messages = messages[last:]
    returns = {returned.tool_call_id: returned for message in turn_messages for returned in message.tool_returns}
    calls = tuple(
        _past_call(call.name, call.arguments, returns.get(call.id))
        for message in turn_messages
        if message.role is not Role.APPROVAL  # It repeats calls.
        for call in message.tool_calls
    )
    return Turn(text, words, calls, _required_tools(turn_messages))


def _words(message: Message) -> Words | None:
    if message.role is not Role.SYSTEM:
        return None
    if (match := _AGENT_MESSAGE.match(message.text)) is not None:
        return Words(match["speaker"], match["text"], is_direct=True)
    head = f"{message.name}: "
    return (
        Words(message.name, message.text.removeprefix(head)) if message.name and message.text.startswith(head) else None
    )


def _past_call(name: str, arguments: str, returned: ToolReturn | None) -> PastCall:
    is_error = returned is not None and returned.status is ToolStatus.ERROR
    return PastCall(name, arguments_object(arguments), is_error, None if returned is None else returned.text)


def _required_tools(messages: tuple[Message, ...]) -> tuple[str, ...]:
    """Returns the tools that an event of this turn still requires."""
    names: list[str] = []
    for message in messages:
        if message.is_event:
            for pattern in _REQUIREMENTS:
                for match in pattern.finditer(message.text):
                    names += re.findall(r"\w+", match[1])
    return tuple(dict.fromkeys(names))
