"""Turns, raw traces and tool interactions: views of an agent's messages."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import msgspec
from mnemesh_types.messages import (
    ClientReturn,
    ContentPart,
    Deny,
    ImagePart,
    Message,
    Role,
    ToolCall,
    ToolReturn,
    ToolStatus,
    text_of,
)
from mnemesh_types.recall import InteractionStatus, Media, RawTrace, TraceType

_DATA_URL: Final = re.compile(r"data:([^;,]*);base64,(.*)", re.DOTALL)
_FILE_ID: Final = re.compile(r"file-[A-Za-z0-9_-]+")


def locations_of(parts: Iterable[ContentPart]) -> tuple[str, ...]:
    """Returns the images among content parts, in order. An inline image is a data URL with its bytes."""
    locations = (_location(part) for part in parts if isinstance(part, ImagePart))
    return tuple(location for location in locations if location is not None)


def _location(part: ImagePart) -> str | None:
    if part.data is not None:
        return f"data:{part.media_type or ''};base64,{base64.b64encode(part.data).decode()}"
    return part.url if part.url is not None else part.file_id


def image_at(location: str) -> ImagePart:
    """Returns the image of a trace. A data URL becomes an inline image if its bytes can be decoded."""
    if (match := _DATA_URL.fullmatch(location)) is not None:
        try:
            return ImagePart(data=base64.b64decode(match[2], validate=True), media_type=match[1])
        except binascii.Error:
            pass
    return ImagePart(file_id=location) if _FILE_ID.fullmatch(location) else ImagePart(url=location)


SOURCE_EVENTS: Final[Mapping[TraceType, str]] = {
    TraceType.USER: "LLMUserMessageReadyEvent",
    TraceType.ASSISTANT: "LLMCompleteResponseReceivedEvent",
    TraceType.TOOL_CALL: "PendingToolInvocationEvent",
    TraceType.TOOL_RESULT: "ToolResultEvent",
}
"""The origin of each type in trace files."""


class Trace(RawTrace):
    """One line of a trace file. Arguments and results are JSON text; `extra` is the text of a JSON object."""

    __slots__ = ()

    @property
    def is_imported(self) -> bool:
        """True if the trace was a line of an imported file."""
        return bool(self.message_id) and not self.id.startswith(f"{self.message_id}.")


NUMBERED_TURN: Final = re.compile(r"turn_(\d{4,18})")
"""The form of the turn ids that recall assigns."""
OVERRIDABLE: Final = (
    "created_at", "content", "source_event", "media", "tool_name", "tool_call_id", "tool_args", "tool_result",
    "tool_error", "correlation_id", "tags", "tool_result_ref", "extra",
)  # fmt: skip
"""The fields in which an imported line may differ from the trace of the message that it became."""


@dataclass(frozen=True, slots=True)
class ImportedLine:
    """The part of an imported line that its message does not express: its id, its position, and other values."""

    message_id: str
    ordinal: int
    trace_id: str
    seq: int
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The window of a conversation at one time. `epoch` counts its resets from 1."""

    conversation_id: str
    epoch: int
    reset_at: datetime | None
    messages: tuple[Message, ...]


def opens_turn(message: Message) -> bool:
    """Returns whether a message starts a turn: a user message that is not an event in the user's name."""
    return message.is_from_user


def in_turns(message: Message) -> bool:
    """Returns whether a message belongs to a turn. System messages and summaries do not."""
    return message.role not in (Role.SYSTEM, Role.SUMMARY)


def answered_calls(message: Message) -> Iterator[str]:
    """Yields the ids of the calls that a message returns or decides on. It belongs to their turn."""
    yield from (item.tool_call_id for item in message.tool_returns)
    yield from (decision.tool_call_id for decision in message.approval_decisions)


def calls_of(message: Message) -> tuple[ToolCall, ...]:
    """Returns the calls that a message makes. A request for approval only repeats calls of another message."""
    return () if message.role is Role.APPROVAL else message.tool_calls


def returns_of(message: Message) -> Iterator[ToolReturn]:
    """Yields the returns in a message, including those of tools that the client ran."""
    yield from message.tool_returns
    yield from (item.tool_return for item in message.approval_decisions if isinstance(item, ClientReturn))


def traces_of_turn(
    messages: Iterable[Message],
    lines: Mapping[str, Sequence[ImportedLine]],
    archived: bool,
    imported_turn_id: str | None = None,
) -> tuple[Trace, ...]:
    """Returns the traces of one turn, ordered by seq. `lines` maps a message id to its imported lines."""
    traces = []
    last = 0
    messages = tuple(messages)
    returned = {item.tool_call_id for message in messages for item in message.tool_returns}
    for message in messages:
        imported = {line.ordinal: line for line in lines.get(message.id, ())}
        for ordinal, trace in enumerate(traces_of_message(message), start=1):
            if message.role is Role.APPROVAL and trace.tool_call_id in returned:
                # A tool message repeats the return that the client gave with its decision.
                continue
            line = imported.get(ordinal)
            last = last + 1 if line is None else line.seq
            numbered = replace(trace, seq=last, archived=archived, imported_turn_id=imported_turn_id)
            traces.append(numbered if line is None else replace(numbered, id=line.trace_id, **line.overrides))
    return tuple(sorted(traces, key=lambda trace: trace.seq))


def traces_of_message(message: Message) -> list[Trace]:
    """Returns the traces of one message. Their seq is 0, because only the turn numbers them."""
    if message.is_err or not in_turns(message) or message.is_event:
        return []
    return [
        Trace(
            id=f"{message.id}.{ordinal}",
            created_at=message.created_at,
            turn_id=message.turn_id or "",
            seq=0,
            trace_type=kind,
            source_event=SOURCE_EVENTS[kind],
            agent_id=message.agent_id,
            conversation_id=message.conversation_id,
            message_id=message.id,
            run_id=message.run_id,
            **fields,
        )
        for ordinal, (kind, fields) in enumerate(_trace_fields(message), start=1)
    ]


def _trace_fields(message: Message) -> Iterator[tuple[TraceType, dict[str, Any]]]:
    text, media = text_of(message.content), _media(message.content)
    if message.role is Role.USER:
        yield TraceType.USER, {"content": text, "media": media}
        return
    if message.role is Role.TOOL and not message.tool_returns:
        yield TraceType.TOOL_RESULT, {"tool_name": message.name, "media": media, "tool_result": as_json(text)}
        return
    if message.role is Role.ASSISTANT and (text or media or not message.tool_calls):
        yield TraceType.ASSISTANT, {"content": text, "media": media}
    for call in calls_of(message):
        yield (
            TraceType.TOOL_CALL,
            {"tool_name": call.name, "tool_call_id": call.id, "tool_args": call.arguments},
        )
    for item in returns_of(message):
        outcome = item.text
        failed = item.status is ToolStatus.ERROR
        yield (
            TraceType.TOOL_RESULT,
            {
                "tool_name": item.name or None,
                "tool_call_id": item.tool_call_id,
                "media": _media(item.content),
                **({"tool_error": outcome} if failed else {"tool_result": as_json(outcome)}),
            },
        )


def _media(parts: Iterable[ContentPart]) -> Media | None:
    images = locations_of(parts)
    return Media(images=images) if images else None


def as_json(text: str) -> str:
    """Returns a tool result as JSON text: unchanged if it is an object or an array, otherwise as a string."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            if isinstance(msgspec.json.decode(text), dict | list):
                return text
        except (msgspec.DecodeError, RecursionError):
            pass
    return msgspec.json.encode(text).decode()


def as_text(value: str) -> str:
    """Returns the text for which `as_json` returns that JSON, or JSON with the same value."""
    decoded = msgspec.json.decode(value)
    return decoded if isinstance(decoded, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInteraction:
    """A tool call with its result, if it has one, and the denial of a call that waited for approval."""

    call: ToolCall
    calling: Message
    tool_return: ToolReturn | None = None
    returning: Message | None = None
    denial: Deny | None = None

    @property
    def status(self) -> InteractionStatus:
        """PENDING without a result or a denial. A result without a status is a success."""
        if self.denial is not None:
            return InteractionStatus.DENIED
        if self.tool_return is None:
            return InteractionStatus.PENDING
        return InteractionStatus.ERROR if self.tool_return.status is ToolStatus.ERROR else InteractionStatus.SUCCESS


def pair(calling: Message, call: ToolCall, others: Sequence[Message]) -> ToolInteraction:
    """Returns a call with its return: the first one with its id after the call and before the id is called again.

    `others` are the messages that mention the id, ordered by sequence id.
    """
    denial: Deny | None = None
    for message in others:
        if message.sequence_id < calling.sequence_id:
            continue
        if message.id != calling.id and any(other.id == call.id for other in calls_of(message)):
            break
        for decision in message.approval_decisions:
            if decision.tool_call_id == call.id:
                denial = decision if isinstance(decision, Deny) else None
        for item in returns_of(message):
            if item.tool_call_id == call.id:
                return ToolInteraction(call=call, calling=calling, tool_return=item, returning=message, denial=denial)
    return ToolInteraction(call=call, calling=calling, denial=denial)
