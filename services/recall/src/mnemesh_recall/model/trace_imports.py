"""What imported traces become: messages, and what their lines say beyond them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import msgspec
from mnemesh_kit.ids import derive_id

from mnemesh_recall.model.messages import (
    ContentPart,
    ImagePart,
    ImageUrl,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from mnemesh_recall.model.traces import CARRIED, Line, Trace, TraceType, as_text, view

OWN_ID: Final = re.compile(r"(message-[0-9a-f-]{36})\.(\d{1,9})")
"""How the traces of mnemesh's own messages are called."""
UNKNOWN: Final = "unknown"
_ROLES: Final = {
    TraceType.USER: Role.USER,
    TraceType.ASSISTANT: Role.ASSISTANT,
    TraceType.TOOL_CALL: Role.ASSISTANT,
    TraceType.TOOL_RESULT: Role.TOOL,
}


@dataclass(frozen=True, slots=True)
class _Step:
    """A trace, and the call that it makes or answers, under the id that the message gives it."""

    trace: Trace
    call_id: str = ""


def messages_of(agent_id: str, traces: Sequence[Trace]) -> Iterator[tuple[Message, list[Line], list[Trace]]]:
    """The messages that new traces become, in order, each with the lines of its traces.

    Traces that were one message where they come from are one again. A call without an id gets one of its trace's, and
    a result without an id answers the last call of its tool in its turn.
    """
    for _, run in groupby(_with_calls(agent_id, traces), key=_belonging):
        group = list(run)
        parts = [group] if _shows(_message(agent_id, group), group) else [[step] for step in group]
        for part in parts:
            message = _message(agent_id, part)
            given = [step.trace for step in part]
            yield message, list(_lines(message, given)), given


def _belonging(step: _Step) -> tuple[Any, ...]:
    trace = step.trace
    own = OWN_ID.fullmatch(trace.id)
    return own[1] if own else trace.id, trace.turn_id, trace.conversation_id, _ROLES[trace.trace_type], trace.archived


def _shows(message: Message, group: Sequence[_Step]) -> bool:
    return [trace.trace_type for trace in view(message)] == [step.trace.trace_type for step in group]


def _with_calls(agent_id: str, traces: Sequence[Trace]) -> Iterator[_Step]:
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
        yield _Step(trace, call_id)


def _message(agent_id: str, group: Sequence[_Step]) -> Message:
    first = group[0].trace
    content: list[ContentPart] = []
    calls: list[ToolCall] = []
    returns: list[ToolReturn] = []
    for step in group:
        trace = step.trace
        if trace.trace_type is TraceType.TOOL_CALL:
            calls.append(ToolCall(step.call_id, trace.tool_name or UNKNOWN, _arguments(trace.tool_args)))
        elif trace.trace_type is TraceType.TOOL_RESULT:
            returns.append(_return(step))
        else:
            if trace.content:
                content.append(TextPart(trace.content))
            content += [ImagePart(ImageUrl(url)) for url in (trace.media.images if trace.media else ())]
    own = OWN_ID.fullmatch(first.id)
    # The parts of a group that was split must not share an id.
    named = own[1] if own and len(group) > 1 else first.id
    return Message(
        id=derive_id("message", agent_id, named),
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


def _return(step: _Step) -> ToolReturn:
    trace = step.trace
    failed = trace.tool_error is not None
    said = trace.tool_error if failed else (trace.content if trace.tool_result is None else as_text(trace.tool_result))
    return ToolReturn(
        tool_call_id=step.call_id,
        name=trace.tool_name or "",
        status=ToolStatus.ERROR if failed else ToolStatus.SUCCESS,
        content=(TextPart(said or ""),),
    )


def _arguments(value: str | None) -> str:
    if value is None:
        return "{}"
    return value if isinstance(msgspec.json.decode(value), dict) else f'{{"value":{value}}}'


def _lines(message: Message, group: Sequence[Trace]) -> Iterator[Line]:
    for ordinal, (trace, seen) in enumerate(zip(group, view(message), strict=True), start=1):
        differing = {field: getattr(trace, field) for field in CARRIED if getattr(trace, field) != getattr(seen, field)}
        yield Line(message.id, ordinal, trace.id, trace.seq, differing)


def same(there: Trace, given: Trace) -> bool:
    """Whether two traces of one id say the same; JSON counts by its values."""
    if (there.turn_id, there.trace_type) != (given.turn_id, given.trace_type):
        return False
    return all(_valued(there, field) == _valued(given, field) for field in CARRIED)


def _valued(trace: Trace, field: str) -> Any:
    value = getattr(trace, field)
    return value if value is None or field not in ("tool_args", "tool_result", "extra") else msgspec.json.decode(value)
