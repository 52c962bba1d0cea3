"""Traces: records of messages, and those that were imported."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import (
    ClientReturn,
    ContentPart,
    Deny,
    ImagePart,
    Message,
    Role,
    TextPart,
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


OWN_ID: Final = re.compile(r"(message-[0-9a-f-]{36})\.(\d{1,9})")
"""The form of the ids of traces that mnemesh exported: the message id and the ordinal within the message."""
UNKNOWN_TOOL: Final = "unknown"
_ROLES: Final = {
    TraceType.USER: Role.USER,
    TraceType.ASSISTANT: Role.ASSISTANT,
    TraceType.TOOL_CALL: Role.ASSISTANT,
    TraceType.TOOL_RESULT: Role.TOOL,
}


@dataclass(frozen=True, slots=True)
class _TraceWithCall:
    """A trace, and the id that its message uses for the call that it makes or answers."""

    trace: Trace
    call_id: str = ""


def messages_from_traces(
    agent_id: str, traces: Sequence[Trace]
) -> Iterator[tuple[Message, list[ImportedLine], list[Trace]]]:
    """Yields the messages that new traces become, in order, each with its lines and its traces.

    Traces that were one message in the exporting agent become one message. A call without an id gets one that is
    derived from its trace. A result without an id answers the last open call of the same tool in its turn.
    """
    for _, run in groupby(_with_calls(agent_id, traces), key=_message_key):
        group = list(run)
        parts = [group] if _has_traces(_message(agent_id, group), group) else [[item] for item in group]
        for part in parts:
            message = _message(agent_id, part)
            part_traces = [item.trace for item in part]
            yield message, list(_lines(message, part_traces)), part_traces


def _message_key(item: _TraceWithCall) -> tuple[Any, ...]:
    trace = item.trace
    own = OWN_ID.fullmatch(trace.id)
    return own[1] if own else trace.id, trace.turn_id, trace.conversation_id, _ROLES[trace.trace_type], trace.archived


def _has_traces(message: Message, group: Sequence[_TraceWithCall]) -> bool:
    return [trace.trace_type for trace in traces_of_message(message)] == [item.trace.trace_type for item in group]


def _with_calls(agent_id: str, traces: Sequence[Trace]) -> Iterator[_TraceWithCall]:
    open_calls: dict[tuple[str, str | None], list[str]] = {}
    for trace in traces:
        key = trace.turn_id, trace.tool_name
        if trace.trace_type is TraceType.TOOL_CALL:
            call_id = trace.tool_call_id or derive_id("call", agent_id, trace.id)
            open_calls.setdefault(key, []).append(call_id)
        elif trace.trace_type is TraceType.TOOL_RESULT:
            waiting = open_calls.get(key, [])
            call_id = trace.tool_call_id or (waiting[-1] if waiting else derive_id("call", agent_id, trace.id))
            if call_id in waiting:
                waiting.remove(call_id)
        else:
            call_id = ""
        yield _TraceWithCall(trace, call_id)


def _message(agent_id: str, group: Sequence[_TraceWithCall]) -> Message:
    first = group[0].trace
    content: list[ContentPart] = []
    calls: list[ToolCall] = []
    returns: list[ToolReturn] = []
    for item in group:
        trace = item.trace
        if trace.trace_type is TraceType.TOOL_CALL:
            calls.append(ToolCall(item.call_id, trace.tool_name or UNKNOWN_TOOL, _arguments(trace.tool_args)))
        elif trace.trace_type is TraceType.TOOL_RESULT:
            returns.append(_return(item))
        else:
            if trace.content:
                content.append(TextPart(trace.content))
            content += _images(trace)
    own = OWN_ID.fullmatch(first.id)
    # The parts of a group that was split must have different ids.
    source_id = own[1] if own and len(group) > 1 else first.id
    return Message(
        id=derive_id("message", agent_id, source_id),
        agent_id=agent_id,
        role=_ROLES[first.trace_type],
        created_at=first.created_at,
        content=tuple(content),
        tool_calls=tuple(calls),
        tool_returns=tuple(returns),
        turn_id=first.turn_id,
        run_id=first.run_id,
        conversation_id=first.conversation_id,
    )


def _return(item: _TraceWithCall) -> ToolReturn:
    trace = item.trace
    failed = trace.tool_error is not None
    text = trace.tool_error if failed else (trace.content if trace.tool_result is None else as_text(trace.tool_result))
    status = ToolStatus.ERROR if failed else ToolStatus.SUCCESS
    content: tuple[ContentPart, ...] = (TextPart(text or ""), *_images(trace))
    return ToolReturn(item.call_id, trace.tool_name or "", status, content)


def _images(trace: Trace) -> list[ImagePart]:
    return [image_at(location) for location in (trace.media.images if trace.media is not None else ())]


def _arguments(value: str | None) -> str:
    if value is None:
        return "{}"
    return value if isinstance(msgspec.json.decode(value), dict) else f'{{"value":{value}}}'


def _lines(message: Message, group: Sequence[Trace]) -> Iterator[ImportedLine]:
    for ordinal, (trace, derived) in enumerate(zip(group, traces_of_message(message), strict=True), start=1):
        overrides = {
            field: getattr(trace, field) for field in OVERRIDABLE if getattr(trace, field) != getattr(derived, field)
        }
        yield ImportedLine(message.id, ordinal, trace.id, trace.seq, overrides)


@dataclass(frozen=True, slots=True)
class AgentTurns:
    """The turns of an agent that an import may name.

    `imported` maps an id in an earlier file to the newest turn that has another id here.
    """

    ids: frozenset[str]
    imported: Mapping[str, str]
    last_index: int


def turn_ids_of_import(
    given: Sequence[Trace], existing: Mapping[str, Trace], agent_turns: AgentTurns
) -> dict[str, str]:
    """Returns the agent's turn for each turn id of the given traces.

    The new traces of a turn that was imported before join that turn if their positions are free. If the agent has
    another turn with that id, or one of the positions is taken, the turn gets a new number; then all new turns with
    numbers do, so that they keep their order.

    Args:
        given: the traces of the import, in order.
        existing: the agent's traces by id, of all turns that the import may name.
        agent_turns: the agent's turns.
    """
    by_turn: dict[str, list[Trace]] = {}
    for trace in given:
        by_turn.setdefault(trace.turn_id, []).append(trace)
    taken: dict[str, set[int]] = {}
    for trace in existing.values():
        taken.setdefault(trace.turn_id, set()).add(trace.seq)
    imported = {trace.turn_id for trace in existing.values() if trace.is_imported}
    found: dict[str, str] = {}
    for turn_id, traces in by_turn.items():
        new = {trace.seq for trace in traces if trace.id not in existing}
        known = next((existing[trace.id].turn_id for trace in traces if trace.id in existing), None)
        candidate = known or agent_turns.imported.get(turn_id, turn_id)
        joins = known is not None or candidate in imported
        if not new or (joins and new.isdisjoint(taken.get(candidate, ()))):
            found[turn_id] = candidate
    return found | _new_turn_ids([turn_id for turn_id in by_turn if turn_id not in found], agent_turns)


def _new_turn_ids(turn_ids: Sequence[str], agent_turns: AgentTurns) -> dict[str, str]:
    if agent_turns.ids.isdisjoint(turn_ids):
        return dict(zip(turn_ids, turn_ids, strict=True))
    # A turn that keeps its id takes the next index, too.
    return {
        id_: f"turn_{index:04d}" if NUMBERED_TURN.fullmatch(id_) or id_ in agent_turns.ids else id_
        for index, id_ in enumerate(turn_ids, start=agent_turns.last_index + 1)
    }


def is_same_trace(stored: Trace, given: Trace) -> bool:
    """Returns whether two traces with one id have the same content. JSON is compared by value."""
    if given.turn_id not in (stored.turn_id, stored.imported_turn_id) or stored.trace_type is not given.trace_type:
        return False
    return all(_comparable(stored, field) == _comparable(given, field) for field in OVERRIDABLE)


def _comparable(trace: Trace, field: str) -> Any:
    value = getattr(trace, field)
    return value if value is None or field not in ("tool_args", "tool_result", "extra") else msgspec.json.decode(value)
