"""Calls that wait for a decision: the messages that ask and answer, and the results that decisions give."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import (
    ApprovalDecision,
    ClientReturn,
    Deny,
    ImagePart,
    Message,
    Role,
    ToolReturn,
    ToolStatus,
)
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED
from mnemesh_orchestrator.loop.rules import RulesSolver
from mnemesh_orchestrator.loop.state import StepState, TurnContext
from mnemesh_orchestrator.loop.step_messages import approval_request_id, approved_speech_event, gated_calls
from mnemesh_orchestrator.model.approvals import Approval, AskedStep, OpenRequest, PlannedCall, Resumption
from mnemesh_orchestrator.model.custom_tools import ToolResult
from mnemesh_orchestrator.model.events import MessageEvent
from mnemesh_orchestrator.model.journal import JournalledAnswer
from mnemesh_orchestrator.model.runs import Run

NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)
CANCELLED: Final = "The run was cancelled before this tool was run."
UNASKED: Final = (
    "Error: {name} needs a person's approval, which was not requested for this call. It was not run; call it again."
)
_DENIED: Final = "Error: request to call tool denied."


def request_message(run: Run, step: StepState) -> Message:
    """Returns the message that requests approval for a step's calls. It follows the message that makes them."""
    return Message(
        id=approval_request_id(step.id),
        role=Role.APPROVAL,
        created_at=step.given.message.created_at,
        tool_calls=gated_calls(step.planned),
        step_id=step.id,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
    )


def approval(context: TurnContext, solver: RulesSolver, step: StepState, stored: Message, now: datetime) -> Approval:
    """Returns the approval that the turn stops for. `stored` is the answer as the window holds it."""
    run = context.run
    waiting = {item.call.name for item in step.planned if item.gated}
    asked = AskedStep(
        step.id,
        stored,
        step.planned,
        solver.history,
        solver.last_result,
        tuple(sorted(waiting & context.toolbox.client)),
        step.given.seen,
    )
    timeout = context.agent.approval_timeout_seconds
    expires_at = None if timeout is None else now + timedelta(seconds=timeout) if timeout else NEVER
    return Approval(
        approval_request_id(step.id),
        run.organization_id,
        run.subject_id,
        run.agent_id,
        run.conversation_id,
        run.id,
        now,
        run.config,
        asked,
        expires_at,
    )


def resumed_answer(resumption: Resumption, base_version: int) -> JournalledAnswer:
    """Returns the answer whose calls waited, for the run that resumes it."""
    return JournalledAnswer(resumption.asked.message, (), Usage(), base_version, None, seen=resumption.asked.seen)


def answer_message(run: Run, resumption: Resumption) -> Message:
    """Returns the message that answers a request for approval."""
    return _answer_message(run, resumption.request_id, resumption.decisions)


def speech_event(run: Run, item: PlannedCall, at: datetime) -> MessageEvent | None:
    """Returns the words of a speaking call that waited for approval; None if the call did not wait."""
    resumption = run.resumes
    if resumption is None or item not in resumption.asked.calls:
        return None
    text = str(item.arguments.get(run.config.assistant_tool_argument, ""))
    return approved_speech_event(resumption.asked.message.id, item, text, at)


def decided_result(decision: ApprovalDecision | None, limit: int) -> ToolResult | None:
    """Returns the result of a call that its decision replaces; None if the tool has to run or nothing was decided.

    Args:
        decision: the decision.
        limit: the most characters of a text that the client returned.
    """
    match decision:
        case Deny(_, reason):
            return ToolResult(ok=False, text=f"{_DENIED} User reason: {reason}" if reason else _DENIED)
        case ClientReturn(_, item):
            stdout, stderr = (tuple(_clipped(line, limit) for line in lines) for lines in (item.stdout, item.stderr))
            images = tuple(part for part in item.content if isinstance(part, ImagePart))
            return ToolResult(item.status is ToolStatus.SUCCESS, _clipped(item.text, limit), stdout, stderr, images)
        case _:
            return None


def _clipped(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… [{len(text) - limit} more characters were cut off]"


def closing_messages(
    run: Run,
    request: OpenRequest,
    known: Mapping[str, ToolReturn] | None = None,
    decisions: Sequence[ApprovalDecision] = (),
) -> tuple[Message, ...]:
    """Returns the messages that close a request for approval whose calls do not run: an answer and all returns.

    Args:
        run: the run that closes the request, and dates the messages.
        request: the open request.
        known: by call id, the returns of calls that ran; the other calls are returned as cancelled. None if the run
            does not know which calls ran: they are returned as interrupted.
        decisions: the decisions, if there were any; otherwise every call is denied.
    """
    text = INTERRUPTED if known is None else CANCELLED
    returns = tuple(
        (known or {}).get(call.id) or ToolReturn.from_text(call.id, call.name, ToolStatus.ERROR, text)
        for call in request.calls
    )
    decisions = tuple(decisions) or tuple(Deny(call.id, text) for call in request.request.tool_calls)
    answer = _answer_message(run, request.request.id, decisions)
    closed = Message(
        id=derive_id("message", run.id, request.request.id, "returns"),
        role=Role.TOOL,
        created_at=run.created_at,
        tool_returns=returns,
        step_id=request.caller.step_id,
        run_id=run.id,
        conversation_id=run.conversation_id,
        group_id=run.group_id,
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
        group_id=run.group_id,
    )
