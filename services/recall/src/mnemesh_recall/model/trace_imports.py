"""The conversion of imported traces to messages, with the parts of their lines that a message cannot express."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import msgspec
from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import ContentPart, ImagePart, Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus
from mnemesh_types.recall import TraceType

from mnemesh_recall.model.traces import (
    NUMBERED_TURN,
    OVERRIDABLE,
    ImportedLine,
    Trace,
    as_text,
    image_at,
    traces_of_message,
)

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
