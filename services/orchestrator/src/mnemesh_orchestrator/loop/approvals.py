"""Calls that wait for a decision: which ones, what asks for it, and what the decision makes of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import (
    ApprovalDecision,
    ClientReturn,
    Deny,
    Message,
    Role,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from mnemesh_types.usage import Usage
from msgspec import structs

from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.loop.message_events import otid
from mnemesh_orchestrator.loop.rules import OutputUnmapped, RulesSolver
from mnemesh_orchestrator.loop.state import Answered, Turn
from mnemesh_orchestrator.loop.toolbox import Toolbox
from mnemesh_orchestrator.model.approvals import Approval, AskedStep, OpenRequest, PlannedCall, Resumption, open_request
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.custom_tools import ToolResult
from mnemesh_orchestrator.model.events import MessageEvent
from mnemesh_orchestrator.model.journal import JournalledAnswer
from mnemesh_orchestrator.model.rules import Conditional
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.model.steps import Step

CANCELLED = "The run was cancelled before this tool was run."
UNASKED = "Error: {name} needs a person's approval, and nobody was asked for this call. It was not run; call it again."
_DENIED = "Error: request to call tool denied."
_SPEECH_INDEX = 64
"""Where the otids begin of words that are spoken once their call is approved."""


def is_gated(item: PlannedCall, toolbox: Toolbox, solver: RulesSolver) -> bool:
    """Whether a call waits for a decision. What cannot be run, or what a rule forbids, is refused without asking.

    Rules that look at what the calls before it return are not known yet: then it is asked for.
    """
    name = item.call.name
    if name not in toolbox.gated or item.problem is not None:
        return False
    if item.ordinal and any(isinstance(rule, Conditional) for rule in solver.rules):
        return True
    try:
        return name in solver.allowed(toolbox.names)
    except OutputUnmapped:
        return False


def regated(planned: Sequence[PlannedCall], gated: Sequence[int]) -> tuple[PlannedCall, ...]:
    """The calls, of which those wait that the journal says."""
    return tuple(replace(item, gated=item.ordinal in gated) for item in planned)


def request_id(step_id: str) -> str:
    """The id of the message that asks for the calls of a step."""
    return derive_id("message", step_id, "approval")


def asked_calls(planned: Sequence[PlannedCall]) -> tuple[ToolCall, ...]:
    """The calls that wait, with the arguments that they will be carried out with."""
    return tuple(
        structs.replace(item.call, arguments=json.dumps(dict(item.arguments), ensure_ascii=False))
        for item in planned
        if item.gated
    )


def request_message(turn: Turn, answered: Answered) -> Message:
    """The message that asks for a step's calls; it stands behind the one that makes them."""
    step_id = answered.step.id
    return Message(
        id=request_id(step_id),
        role=Role.APPROVAL,
        created_at=answered.answer.message.created_at,
        tool_calls=asked_calls(answered.planned),
        step_id=step_id,
        run_id=turn.run.id,
        conversation_id=turn.run.conversation_id,
    )


def shown_request(message: Message, planned: Sequence[PlannedCall]) -> MessageEvent:
    """The event that asks for the calls of an answer."""
    id_ = request_id(message.step_id or "")
    return MessageEvent("approval_request", id_, otid(id_, 0), message.created_at, tool_calls=asked_calls(planned))


def approval(turn: Turn, answered: Answered, stored: Message, now: datetime) -> Approval:
    """What the turn stops for; `stored` is the answer as the window holds it."""
    run = turn.run
    waiting = {item.call.name for item in answered.planned if item.gated}
    asked = AskedStep(
        answered.step.id,
        stored,
        answered.planned,
        turn.solver.history,
        turn.solver.last_result,
        tuple(sorted(waiting & turn.toolbox.client)),
        answered.answer.seen,
    )
    return Approval(
        request_id(answered.step.id),
        run.organization_id,
        run.subject_id,
        run.agent_id,
        run.conversation_id,
        run.id,
        now,
        run.config,
        asked,
    )


def resumed(turn: Turn, resumption: Resumption, step: Step) -> Answered:
    """The step that waited, as the run that answers it takes it up: committed under an id of its own."""
    answer = JournalledAnswer(resumption.asked.message, (), Usage(), turn.window.version, None)
    return Answered(answer, resumption.asked.calls, journalled=True, step=step)


def answer_message(turn: Turn, resumption: Resumption) -> Message:
    """The message that answers a request for approval."""
    return _answer_message(turn.run, resumption.request_id, resumption.decisions)


def shown_answer(turn: Turn, resumption: Resumption) -> MessageEvent:
    """The event of the answer."""
    message = answer_message(turn, resumption)
    return MessageEvent(
        "approval_response",
        message.id,
        otid(message.id, 0),
        message.created_at,
        approval_request_id=message.approval_request_id,
        decisions=message.approval_decisions,
    )


def shown_speech(turn: Turn, item: PlannedCall, at: datetime) -> MessageEvent | None:
    """The words of a speaking call that had waited, which nobody was shown before; None of one that had not."""
    resumption = turn.run.resumes
    if resumption is None or item not in resumption.asked.calls:
        return None
    id_ = resumption.asked.message.id
    words = TextPart(str(item.arguments.get(turn.run.config.assistant_tool_argument, "")))
    return MessageEvent("assistant", id_, otid(id_, _SPEECH_INDEX + item.ordinal), at, content=(words,))


def decided(decision: ApprovalDecision | None, limit: int) -> ToolResult | None:
    """What a decision makes of a call without running the tool; None where it is to be run, or was not decided."""
    match decision:
        case Deny(_, reason):
            return ToolResult(ok=False, text=f"{_DENIED} User reason: {reason}" if reason else _DENIED)
        case ClientReturn(_, item):
            stdout, stderr = (tuple(_clipped(line, limit) for line in lines) for lines in (item.stdout, item.stderr))
            return ToolResult(item.status is ToolStatus.SUCCESS, _clipped(item.text, limit), stdout, stderr)
        case _:
            return None


def _clipped(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} more characters were cut off]"


def dead_request(run: Run, window: ContextWindow) -> OpenRequest | None:
    """What an earlier run left open in the window: nobody can answer it any more once another run begins."""
    return open_request(window.messages) if run.resumes is None else None


def closing(
    run: Run,
    request: OpenRequest,
    known: Mapping[str, ToolReturn] | None = None,
    decisions: Sequence[ApprovalDecision] = (),
) -> tuple[Message, ...]:
    """The messages that close a request which is not carried out: its answer, and a return for every call.

    Args:
        run: the run that closes it, and dates the messages.
        request: what is open.
        known: by call id, what was carried out after all; all others are told to be cancelled. None where that is
            not known of any: they are told to be interrupted.
        decisions: where there were any; else all are denied.
    """
    text = INTERRUPTED if known is None else CANCELLED
    returns = tuple(
        (known or {}).get(call.id) or ToolReturn.from_text(call.id, call.name, ToolStatus.ERROR, text)
        for call in request.calls
    )
    given = tuple(decisions) or tuple(Deny(call.id, text) for call in request.request.tool_calls)
    answer = _answer_message(run, request.request.id, given)
    closed = Message(
        id=derive_id("message", run.id, request.request.id, "returns"),
        role=Role.TOOL,
        created_at=run.created_at,
        tool_returns=returns,
        step_id=request.caller.step_id,
        run_id=run.id,
        conversation_id=run.conversation_id,
        is_err=all(item.status is ToolStatus.ERROR for item in returns) or None,
    )
    return (replace(answer, step_id=request.caller.step_id), closed)


def _answer_message(run: Run, request_id: str, decisions: Sequence[ApprovalDecision]) -> Message:
    return Message(
        id=derive_id("message", run.id, request_id, "decision"),
        role=Role.APPROVAL,
        created_at=run.created_at,
        approval_decisions=tuple(decisions),
        approval_request_id=request_id,
        run_id=run.id,
        conversation_id=run.conversation_id,
    )
