"""Tool interactions: a view of an agent's messages that pairs each tool call with its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from mnemesh_types.messages import Deny, Message, ToolCall, ToolReturn, ToolStatus

from mnemesh_recall.model.traces import calls_of, returns_of


class InteractionStatus(StrEnum):
    """The state of a tool call."""

    PENDING = "pending"
    SUCCESS = "success"
    ERROR = "error"
    DENIED = "denied"


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
