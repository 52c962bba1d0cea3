"""Tool calls that wait for a person or for the client: what was asked, and what was answered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mnemesh_types.messages import ApprovalDecision, Message, Role, ToolCall


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call as it will be carried out.

    `problem` is set where its arguments cannot be used; with `is_rules_fault`
    they are those that a rule gives, which the model cannot mend. A `gated`
    call is carried out once it is decided.
    """

    ordinal: int
    call: ToolCall
    arguments: Mapping[str, Any]
    heartbeat: bool = False
    thinking: str | None = None
    problem: str | None = None
    is_rules_fault: bool = False
    gated: bool = False


@dataclass(frozen=True, slots=True)
class AskedStep:
    """A step whose calls wait: the answer as it is stored, and what its turn knew before it.

    `history` and `last_result` are those of the rules; `client_tools` names the gated tools that the client runs;
    `seen` are the revisions of the memory blocks that the request showed.
    """

    step_id: str
    message: Message
    calls: tuple[PlannedCall, ...]
    history: tuple[str, ...] = ()
    last_result: str = ""
    client_tools: tuple[str, ...] = ()
    seen: Mapping[str, int] | None = None

    @property
    def gated(self) -> tuple[PlannedCall, ...]:
        """The calls that are to be decided."""
        return tuple(item for item in self.calls if item.gated)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What an answering run begins with: the calls that waited, and their decisions.

    Where the approval was withdrawn, none of the calls is carried out and the turn ends.
    """

    request_id: str
    asked: AskedStep
    decisions: tuple[ApprovalDecision, ...]
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request for approval without its answer: where the calling message stands, and its calls without a return."""

    place: int
    caller: Message
    request: Message
    calls: tuple[ToolCall, ...]


def open_request(messages: Sequence[Message]) -> OpenRequest | None:
    """The request for approval that a window still holds open, or None.

    Everything from its `place` on belongs together and must stay in the window: the answer refers to it.
    """
    answered = {message.approval_request_id for message in messages if message.approval_request_id}
    returned = {item.tool_call_id for message in messages for item in message.tool_returns}
    for place in range(len(messages) - 1, -1, -1):
        request = messages[place]
        if request.role is Role.APPROVAL and request.tool_calls and request.id not in answered:
            at = _caller(messages, place)
            caller = messages[at]
            calls = tuple(call for call in caller.tool_calls if call.id not in returned)
            return OpenRequest(at, caller, request, calls) if calls else None
    return None


def _caller(messages: Sequence[Message], place: int) -> int:
    """Where the message stands whose calls a request repeats; the request itself where nothing else makes them."""
    waiting = {call.id for call in messages[place].tool_calls}
    for at in range(place - 1, -1, -1):
        if waiting & {call.id for call in messages[at].tool_calls}:
            return at
    return place
