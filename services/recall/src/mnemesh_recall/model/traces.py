"""Raw traces and tool interactions: what an agent lived through, as a view of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from mnemesh_recall.model.messages import (
    ContentPart,
    ImageFile,
    ImagePart,
    ImageUrl,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from mnemesh_recall.model.searchable_text import is_event


class TraceType(StrEnum):
    """What a raw trace records; the value is the trace files' word for it."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"


SOURCE_EVENTS: Final[Mapping[TraceType, str]] = {
    TraceType.USER: "LLMUserMessageReadyEvent",
    TraceType.ASSISTANT: "LLMCompleteResponseReceivedEvent",
    TraceType.TOOL_CALL: "PendingToolInvocationEvent",
    TraceType.TOOL_RESULT: "ToolResultEvent",
}
"""What the readers of trace files know as the origin of each type."""


@dataclass(frozen=True, slots=True)
class Media:
    """URLs or file ids of what a trace carries beside text."""

    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    video: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line of a trace file. Arguments and results are JSON as text; `extra` is a JSON object as text."""

    id: str
    created_at: datetime
    turn_id: str
    seq: int
    trace_type: TraceType
    content: str = ""
    source_event: str = ""
    media: Media | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_args: str | None = None
    tool_result: str | None = None
    tool_error: str | None = None
    correlation_id: str | None = None
    tags: tuple[str, ...] = ()
    tool_result_ref: str | None = None
    extra: str | None = None
    agent_id: str = ""
    conversation_id: str | None = None
    message_id: str = ""
    run_id: str | None = None
    archived: bool = False


CARRIED: Final = (
    "created_at", "content", "source_event", "media", "tool_name", "tool_call_id", "tool_args", "tool_result",
    "tool_error", "correlation_id", "tags", "tool_result_ref", "extra",
)  # fmt: skip
"""The fields that an imported line may say otherwise than the message that it became."""


@dataclass(frozen=True, slots=True)
class Line:
    """What an imported line says beyond its message: its own id and place, and the fields that differ."""

    message_id: str
    ordinal: int
    trace_id: str
    seq: int
    differing: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A user message and everything that came of it."""

    id: str
    agent_id: str
    conversation_id: str | None
    index: int
    first_message_id: str
    last_message_id: str
    message_count: int
    tool_call_count: int
    compacted: bool
    episode_id: str | None
    started_at: datetime
    ended_at: datetime
    traces: tuple[Trace, ...] = ()


class InteractionStatus(StrEnum):
    """How far a tool call came."""

    PENDING = "pending"
    SUCCESS = "success"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInteraction:
    """A tool call with its result, where there is one."""

    call: ToolCall
    calling: Message
    answer: ToolReturn | None = None
    answering: Message | None = None

    @property
    def status(self) -> InteractionStatus:
        """PENDING without a result; a result of no status is a success."""
        if self.answer is None:
            return InteractionStatus.PENDING
        return InteractionStatus.ERROR if self.answer.status is ToolStatus.ERROR else InteractionStatus.SUCCESS


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The window of a conversation at a moment; the epoch counts its resets from 1."""

    conversation_id: str
    epoch: int
    reset_at: datetime | None
    messages: tuple[Message, ...]


def opens_turn(message: Message) -> bool:
    """Whether a message begins a turn: what a user says, but not an event in a user's name."""
    return message.role is Role.USER and not is_event(message)


def in_turns(message: Message) -> bool:
    """Whether a message belongs to a turn at all."""
    return message.role not in (Role.SYSTEM, Role.SUMMARY)


def answered_calls(message: Message) -> Iterator[str]:
    """The ids of the calls whose turn a message belongs to: those that it returns, or decides on."""
    yield from (answer.tool_call_id for answer in message.tool_returns)
    yield from (decision.tool_call_id for decision in message.approval_decisions)


def returns_of(message: Message) -> Iterator[ToolReturn]:
    """The returns that a message brings, those of tools that the client ran included."""
    yield from message.tool_returns
    yield from (item.decision for item in message.approval_decisions if isinstance(item.decision, ToolReturn))


def traces_of(messages: Iterable[Message], lines: Mapping[str, Sequence[Line]], archived: bool) -> tuple[Trace, ...]:
    """The traces of one turn, by seq; `lines` are the imported ones by message."""
    found = []
    last = 0
    for message in messages:
        known = {line.ordinal: line for line in lines.get(message.id, ())}
        for ordinal, trace in enumerate(view(message), start=1):
            line = known.get(ordinal)
            last = last + 1 if line is None else line.seq
            placed = replace(trace, seq=last, archived=archived)
            found.append(placed if line is None else replace(placed, id=line.trace_id, **line.differing))
    return tuple(sorted(found, key=lambda trace: trace.seq))


def view(message: Message) -> list[Trace]:
    """The traces of one message, without a place in its turn."""
    if message.is_err or not in_turns(message) or (message.role is Role.USER and is_event(message)):
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
            **said,
        )
        for ordinal, (kind, said) in enumerate(_said(message), start=1)
    ]


def _said(message: Message) -> Iterator[tuple[TraceType, dict[str, Any]]]:
    text, images = text_of(message.content), _images(message.content)
    media = Media(images=images) if images else None
    if message.role is Role.USER:
        yield TraceType.USER, {"content": text, "media": media}
        return
    if message.role is Role.TOOL and not message.tool_returns:
        yield TraceType.TOOL_RESULT, {"tool_name": message.name, "tool_result": as_json(text)}
        return
    if message.role is Role.ASSISTANT and (text or media or not message.tool_calls):
        yield TraceType.ASSISTANT, {"content": text, "media": media}
    for call in message.tool_calls:
        yield (
            TraceType.TOOL_CALL,
            {"tool_name": call.name, "tool_call_id": call.id, "tool_args": call.arguments},
        )
    for answer in returns_of(message):
        outcome = text_of(answer.content)
        failed = answer.status is ToolStatus.ERROR
        yield (
            TraceType.TOOL_RESULT,
            {
                "tool_name": answer.name or None,
                "tool_call_id": answer.tool_call_id,
                **({"tool_error": outcome} if failed else {"tool_result": as_json(outcome)}),
            },
        )


def text_of(parts: Iterable[ContentPart]) -> str:
    """What parts say in words."""
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _images(parts: Iterable[ContentPart]) -> tuple[str, ...]:
    sources = [part.source for part in parts if isinstance(part, ImagePart)]
    return tuple(
        source.url if isinstance(source, ImageUrl) else source.file_id
        for source in sources
        if isinstance(source, ImageUrl | ImageFile)
    )


def as_json(text: str) -> str:
    """A result as JSON: itself where it is an object or an array, else a string."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            if isinstance(msgspec.json.decode(text), dict | list):
                return text
        except (msgspec.DecodeError, RecursionError):
            pass
    return msgspec.json.encode(text).decode()


def as_text(value: str) -> str:
    """The text that `as_json` makes that JSON of, or one that says the same."""
    decoded = msgspec.json.decode(value)
    return decoded if isinstance(decoded, str) else value


def pair(calling: Message, call: ToolCall, others: Sequence[Message]) -> ToolInteraction:
    """A call with the first return of its id behind it, and before the id is called again; `others` by sequence."""
    for message in others:
        if message.sequence_id < calling.sequence_id:
            continue
        if message.id != calling.id and any(other.id == call.id for other in message.tool_calls):
            break
        for answer in returns_of(message):
            if answer.tool_call_id == call.id:
                return ToolInteraction(call=call, calling=calling, answer=answer, answering=message)
    return ToolInteraction(call=call, calling=calling)
