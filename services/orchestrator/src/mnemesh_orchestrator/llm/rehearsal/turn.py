"""What the rehearsal reads, the state of a turn and a transcript, and its answers: a tool call or a reply."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mnemesh_types.messages import Message, Role, ToolReturn, ToolStatus

from mnemesh_orchestrator.llm.history import THINKING, arguments_object
from mnemesh_orchestrator.model.models import ToolSchema

_REQUIREMENTS = (
    re.compile(r"must call ([\w\s,'\"`]+?) at least once"),
    re.compile(r"expects these tools: \[([^\]]*)\] to be called"),
)
_AGENT_MESSAGE = re.compile(
    r"\[This message comes from the agent (?P<speaker>[^\n]+) \(id [^)\n]+\), not from the user\.[^\]]*\]\s*"
    r"(?P<text>.*)",
    re.DOTALL,
)

DISCLAIMER: Final = (
    "[mnemesh/rehearsal: this is not a language model. Fixed rules answer, so that the memory can be seen at work.]"
)
HEARTBEAT: Final = "request_heartbeat"

_AGE: Final = r"(?:\((?P<{0}>Older|Newer)\)\s*)?"
_LINE: Final = re.compile(
    rf"^\s*{_AGE.format('before')}(?:(?P<number>\d{{1,9}})[.:)]\s*)?{_AGE.format('after')}"
    r"(?P<role>user|assistant|tool|system|approval): ?(?P<text>.*)$"
)
_HEADING: Final = re.compile(r"^\s*\((?P<age>Older|Newer)\)[^\w]*$")
_INTRODUCTION: Final = re.compile(
    r"<system-reminder>.*?</system-reminder>\s*(?:^Messages:\s*$)?", re.DOTALL | re.MULTILINE
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


@dataclass(frozen=True, slots=True)
class CallTool:
    """Calls a tool; `reason` is the thought that goes with it."""

    tool: str
    arguments: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Replies with a text."""

    text: str


def required_call(name: str, tools: Mapping[str, ToolSchema], turn: Turn) -> CallTool:
    """Returns a call that a rule requires, not the user."""
    call = CallTool(name, {}, "A rule wants this tool called.")
    return call if name not in tools else complete(call, tools[name], turn, is_final=False)


def complete(call: CallTool, tool: ToolSchema, turn: Turn, *, is_final: bool) -> CallTool:
    """Returns the call with everything that its schema requires: the thought first, the heartbeat last."""
    properties = tool.parameters.get("properties") or {}
    arguments: dict[str, Any] = {THINKING: f"Rehearsal rule: {call.reason}"} if THINKING in properties else {}
    arguments.update(call.arguments)
    for name in tool.parameters.get("required") or ():
        if name not in arguments and name != HEARTBEAT:
            arguments[name] = _default_value(properties.get(name) or {}, turn)
    if HEARTBEAT in properties:
        arguments[HEARTBEAT] = not is_final
    return CallTool(call.tool, arguments, call.reason)


def _default_value(schema: Mapping[str, Any], turn: Turn) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    by_type: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}, "null": None}
    return by_type.get(str(kind), turn.text[:200] or "rehearsal")


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """A line of a transcript. `number` and `is_older` are of transcripts for voice agents.

    `date` is the day on which a user wrote it (YYYY-MM-DD), if the transcript has it.
    """

    role: str
    text: str
    number: int | None = None
    is_older: bool = False
    date: str | None = None


def transcript_lines(text: str) -> tuple[TranscriptLine, ...]:
    """Returns the lines of the transcript in a message, without the introduction in front of it."""
    text = _INTRODUCTION.sub("", text)
    lines: list[tuple[re.Match[str], bool, list[str]]] = []
    is_older = False
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            is_older = heading["age"] == "Older"
        elif match := _LINE.match(line):
            age = match["before"] or match["after"]
            lines.append((match, age == "Older" if age else is_older, [match["text"]]))
        elif lines:
            lines[-1][2].append(line)
    return tuple(_line(match, older, "\n".join(parts).strip()) for match, older, parts in lines)


def _line(match: re.Match[str], is_older: bool, text: str) -> TranscriptLine:
    number = int(match["number"]) if match["number"] else None
    text, date = _unpacked(text)
    return TranscriptLine(match["role"], text, number, is_older, date)


def _unpacked(text: str) -> tuple[str, str | None]:
    """Returns the text in the envelope of a user message and its date, or the text as it is."""
    if text.startswith("{"):
        try:
            envelope = json.loads(text)
        except ValueError:
            return text, None
        if isinstance(envelope, dict) and envelope.get("type") == "user_message":
            return str(envelope.get("message", "")), str(envelope.get("time", ""))[:10] or None
    return text, None
