"""Tool calls without a return. A window that contains one is returned with an error return, so that it stays valid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import ClientReturn, Message, Role, ToolCall, ToolReturn, ToolStatus

INTERRUPTED: Final = (
    "The tool call was interrupted: whether it took effect is not known. Check before you call the tool again."
)

_Position = tuple[int, ToolCall]
"""The index of the message that makes a call, and the call."""


def with_error_returns(window: Sequence[Message]) -> tuple[Message, ...]:
    """Returns the window with an error return after every message that has unanswered calls.

    Calls that wait for approval are left alone, and so are the other calls of the same message.

    The returns are not stored: their sequence_id is 0, and their id is derived from the calls that they answer.
    """
    unanswered: dict[int, list[ToolCall]] = {}
    for index, call in _unanswered(window):
        unanswered.setdefault(index, []).append(call)
    if not unanswered:
        return tuple(window)
    repaired: list[Message] = []
    for index, message in enumerate(window):
        repaired.append(message)
        if index in unanswered:
            repaired.append(_error_return(message, unanswered[index]))
    return tuple(repaired)


def is_derived_return(message: Message) -> bool:
    """Returns whether a message of a window is a derived error return, which is not stored."""
    return message.sequence_id == 0


def _unanswered(window: Sequence[Message]) -> Iterator[_Position]:
    open_calls: dict[str, _Position] = {}
    waiting: dict[str, str] = {}
    for index, message in enumerate(window):
        for call in message.tool_calls:
            # A request for approval repeats its calls. Any other repeated id is the provider's.
            if message.role is Role.APPROVAL:
                waiting[call.id] = message.id
                open_calls.setdefault(call.id, (index, call))
                continue
            if call.id in open_calls:
                yield open_calls[call.id]
            open_calls[call.id] = (index, call)
        for decision in message.approval_decisions:
            waiting.pop(decision.tool_call_id, None)
            if isinstance(decision, ClientReturn):
                open_calls.pop(decision.tool_call_id, None)
        if message.approval_request_id is not None:
            waiting = {id_: request for id_, request in waiting.items() if request != message.approval_request_id}
        for item in message.tool_returns:
            open_calls.pop(item.tool_call_id, None)
    held = {index for id_, (index, _) in open_calls.items() if id_ in waiting}
    yield from (position for position in open_calls.values() if position[0] not in held)


def _error_return(message: Message, calls: Sequence[ToolCall]) -> Message:
    return Message(
        id=derive_id("message", "interrupted", message.id, *(call.id for call in calls)),
        agent_id=message.agent_id,
        role=Role.TOOL,
        created_at=message.created_at,
        tool_returns=tuple(ToolReturn.from_text(call.id, call.name, ToolStatus.ERROR, INTERRUPTED) for call in calls),
        group_id=message.group_id,
        step_id=message.step_id,
        run_id=message.run_id,
        turn_id=message.turn_id,
        conversation_id=message.conversation_id,
    )
