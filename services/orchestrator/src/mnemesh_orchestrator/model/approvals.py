"""Tool calls that wait for a decision of a person or for the client: the request and its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul, require_text
from mnemesh_types.messages import (
    ApprovalDecision,
    ClientReturn,
    Deny,
    ImagePart,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)

from mnemesh_orchestrator.errors import PendingApproval
from mnemesh_orchestrator.model.inputs import RunConfig, require_valid_part

_MAX_DECISIONS: Final = 1_000
_MAX_REASON: Final = 10_000
_MAX_IMAGES: Final = 5
_MAX_LINES: Final = 1_000
_MAX_TEXT: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call with the arguments that it will run with.

    `problem` is set if the arguments cannot be used. With `is_rules_fault` they come from a tool rule, so the model
    cannot correct them. A `gated` call runs after it is approved.
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
    """A step whose calls wait for a decision: the stored answer, and the state of the turn before it.

    `history` and `last_result` belong to the tool rules. `client_tools` names the gated tools that the client runs.
    `seen` holds the revisions of the memory blocks that the request showed.
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
        """The calls that need a decision."""
        return tuple(item for item in self.calls if item.gated)


@dataclass(frozen=True, slots=True)
class Resumption:
    """The start of a run that answers an approval: the calls that waited and their decisions.

    If the approval was withdrawn, no call runs and the turn ends.
    """

    request_id: str
    asked: AskedStep
    decisions: tuple[ApprovalDecision, ...]
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request for approval without an answer: the index of the message that makes the calls, and the calls without a
    return.
    """

    index: int
    caller: Message
    request: Message
    calls: tuple[ToolCall, ...]


def open_request(messages: Sequence[Message]) -> OpenRequest | None:
    """Returns the open request for approval of a window, or None.

    The messages from its `index` on belong together and must stay in the window, because the answer refers to them.
    """
    if not any(message.role is Role.APPROVAL for message in messages):
        return None
    answered = {message.approval_request_id for message in messages if message.approval_request_id}
    returned = {item.tool_call_id for message in messages for item in message.tool_returns}
    for index in range(len(messages) - 1, -1, -1):
        request = messages[index]
        if request.role is Role.APPROVAL and request.tool_calls and request.id not in answered:
            at = _caller(messages, index)
            caller = messages[at]
            calls = tuple(call for call in caller.tool_calls if call.id not in returned)
            return OpenRequest(at, caller, request, calls) if calls else None
    return None


def _caller(messages: Sequence[Message], index: int) -> int:
    """Returns the index of the message that makes the calls of a request; the request's own index if no other message
    does.
    """
    waiting = {call.id for call in messages[index].tool_calls}
    for at in range(index - 1, -1, -1):
        if waiting & {call.id for call in messages[at].tool_calls}:
            return at
    return index


@dataclass(frozen=True, slots=True)
class Approval:
    """A request for approval. Its id is that of the stored message; `config` is that of the run that asked."""

    id: str
    organization_id: str
    subject_id: str
    agent_id: str
    conversation_id: str
    run_id: str
    created_at: datetime
    config: RunConfig
    asked: AskedStep
    expires_at: datetime | None = None
    """The time at which it is denied; None follows the server's setting."""


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The answer to an approval. Without an id, it answers the pending one.

    Without a config, the answering run has the config of the run that asked. With one, it keeps that run's client tools
    unless it has its own.
    """

    decisions: tuple[ApprovalDecision, ...]
    approval_request_id: str | None = None
    config: RunConfig | None = None
    withdrawn: bool = False

    def config_after(self, asking: RunConfig) -> RunConfig:
        """Returns the config of the answering run."""
        if self.config is None:
            return asking
        return self.config if self.config.client_tools else replace(self.config, client_tools=asking.client_tools)


@dataclass(frozen=True, slots=True)
class ApprovalFilter:
    """The conditions of pending approvals; an approval must meet all that are set."""

    organization_id: str | None = None
    agent_ids: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    conversation_id: str | None = None
    group_id: str | None = None
    """The group in whose runs the approval was asked for."""
    expired_at: datetime | None = None
    """A time before which the approval has expired by its own timeout, or was asked before `asked_before`."""
    asked_before: datetime | None = None


def require_valid_answer(answer: ApprovalAnswer) -> ApprovalAnswer:
    """Returns the answer to an approval if each decision can be stored.

    Raises:
        InvalidArgument: There is no decision, there are too many, or one breaks a rule. Metadata: field, such as
            `decisions[0].deny.reason`.
    """
    if not answer.decisions:
        raise InvalidArgument("decisions must have at least one decision.", field="decisions")
    if len(answer.decisions) > _MAX_DECISIONS:
        raise InvalidArgument(f"decisions must have at most {_MAX_DECISIONS:,} decisions.", field="decisions")
    for index, decision in enumerate(answer.decisions):
        _require_valid_decision(decision, f"decisions[{index}]")
    return answer


def _require_valid_decision(decision: ApprovalDecision, field: str) -> None:
    call_id = decision.tool_call_id
    if not call_id or " " in call_id or "\0" in call_id:
        raise InvalidArgument(f"{field}.tool_call_id must be the id of a call.", field=f"{field}.tool_call_id")
    match decision:
        case Deny(reason=str() as reason):
            require_text(reason, f"{field}.deny.reason", max_chars=_MAX_REASON)
        case ClientReturn(tool_return=returned):
            _require_valid_return(returned, f"{field}.client_return")


def _require_valid_return(returned: ToolReturn, field: str) -> None:
    if returned.status is ToolStatus.UNSPECIFIED:
        raise InvalidArgument(f"{field}.status must be SUCCESS or ERROR.", field=f"{field}.status")
    if sum(isinstance(part, ImagePart) for part in returned.content) > _MAX_IMAGES:
        raise InvalidArgument(f"{field}.content must have at most {_MAX_IMAGES} images.", field=f"{field}.content")
    for index, part in enumerate(returned.content):
        if not isinstance(part, TextPart):  # a tool can return an empty text
            require_valid_part(part, f"{field}.content[{index}]")
    for name, lines in (("content", (returned.text,)), ("stdout", returned.stdout), ("stderr", returned.stderr)):
        path = f"{field}.{name}"
        if len(lines) > _MAX_LINES or sum(map(len, lines)) > _MAX_TEXT:
            raise InvalidArgument(f"{path} must have at most 1 MB in {_MAX_LINES:,} lines.", field=path)
        for line in lines:
            require_no_nul(line, path)


def require_no_approval(pending: str | None) -> None:
    """Raises PendingApproval if the conversation waits for the approval `pending`."""
    if pending is not None:
        raise PendingApproval(
            "The conversation waits for an approval. Answer it before sending a message.",
            approval_request_id=pending,
        )
