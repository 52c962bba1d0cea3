"""Tool calls that nobody answered: a window that holds one is shown with an error return, so that it stays valid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mnemesh_kit.ids import derive_id

from mnemesh_recall.model.messages import Message, Role, TextPart, ToolCall, ToolReturn, ToolStatus

INTERRUPTED: Final = (
    "The tool call was interrupted: whether it took effect is not known. Check before you call the tool again."
)

_Holder = tuple[int, ToolCall]
"""The place of the message that makes a call, and the call."""


def with_error_returns(window: Sequence[Message]) -> tuple[Message, ...]:
    """The window with an error return behind every message whose calls have none.

    Calls that wait for approval may wait, and so may those that the same message makes beside them.

    The returns are no stored messages: their sequence_id is 0, their id derived from what they answer.
    """
    unanswered_calls: dict[int, list[ToolCall]] = {}
    for place, call in _unanswered(window):
        unanswered_calls.setdefault(place, []).append(call)
    if not unanswered_calls:
        return tuple(window)
    shown: list[Message] = []
    for place, message in enumerate(window):
        shown.append(message)
        if place in unanswered_calls:
            shown.append(_interrupted(message, unanswered_calls[place]))
    return tuple(shown)


def is_derived_return(message: Message) -> bool:
    """Whether a message of a window stands in for a return that is not stored."""
    return message.sequence_id == 0


def _unanswered(window: Sequence[Message]) -> Iterator[_Holder]:
    unanswered: dict[str, _Holder] = {}
    waiting: dict[str, str] = {}
    for place, message in enumerate(window):
        for call in message.tool_calls:
            # A request for approval shows its calls once more; elsewhere a provider repeated an id.
            if message.role is Role.APPROVAL:
                waiting[call.id] = message.id
                unanswered.setdefault(call.id, (place, call))
                continue
            if call.id in unanswered:
                yield unanswered[call.id]
            unanswered[call.id] = (place, call)
        for decision in message.approval_decisions:
            waiting.pop(decision.tool_call_id, None)
            if isinstance(decision.decision, ToolReturn):
                unanswered.pop(decision.tool_call_id, None)
        if message.approval_request_id is not None:
            waiting = {id_: request for id_, request in waiting.items() if request != message.approval_request_id}
        for answer in message.tool_returns:
            unanswered.pop(answer.tool_call_id, None)
    held = {place for id_, (place, _) in unanswered.items() if id_ in waiting}
    yield from (holder for holder in unanswered.values() if holder[0] not in held)


def _interrupted(message: Message, calls: Sequence[ToolCall]) -> Message:
    return Message(
        id=derive_id("message", "interrupted", message.id, *(call.id for call in calls)),
        agent_id=message.agent_id,
        role=Role.TOOL,
        created_at=message.created_at,
        tool_returns=tuple(
            ToolReturn(call.id, call.name, ToolStatus.ERROR, (TextPart(INTERRUPTED),)) for call in calls
        ),
        group_id=message.group_id,
        step_id=message.step_id,
        run_id=message.run_id,
        turn_id=message.turn_id,
        conversation_id=message.conversation_id,
    )
