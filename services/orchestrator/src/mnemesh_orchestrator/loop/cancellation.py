"""The messages that a cancelled turn leaves, so that the history stays valid. Pure functions; the engine commits."""

from dataclasses import replace
from datetime import datetime

from mnemesh_kit.ids import derive_id
from mnemesh_types.messages import Message, ToolReturn, ToolStatus
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop.call_results import CallResult
from mnemesh_orchestrator.loop.policy import Verdict
from mnemesh_orchestrator.loop.state import StepState, TurnContext, TurnState, new_step
from mnemesh_orchestrator.loop.step_commit import step_messages
from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry, JournalledAnswer
from mnemesh_orchestrator.model.runs import StopReason


def cancelled_step_messages(context: TurnContext, step: StepState, entry: JournalEntry) -> tuple[Message, ...]:
    """Returns the messages of a step whose answer is journalled: calls without a result are returned as cancelled."""
    results = []
    for item in step.planned:
        known = context.journal.entry(step.id, EntryKind.RESULT, item.ordinal)
        returned = known.result if known is not None else None
        cancelled = ToolReturn.from_text(item.call.id, item.call.name, ToolStatus.ERROR, approvals.CANCELLED)
        results.append(CallResult(item, returned or cancelled, known.at if known is not None else entry.at))
    return step_messages(context, step, results, Verdict(StopReason.CANCELLED))


def input_step(context: TurnContext, state: TurnState, now: datetime) -> tuple[StepState, tuple[Message, ...]] | None:
    """Returns the step that commits the input of a turn that no step has committed, with its messages; None if none is.

    The next turn then knows what the user said.
    """
    held = {message.id for message in state.window.messages}
    left = tuple(message for message in state.pending if message.id not in held)
    if not left:
        return None
    step = _messages_step(context, state, "input", left[-1], now)
    return step, tuple(replace(message, step_id=message.step_id or step.id) for message in left)


def closing_step(context: TurnContext, state: TurnState, now: datetime) -> tuple[StepState, tuple[Message, ...]] | None:
    """Returns the step that closes the request for approval which the window holds open, with its messages.

    A cancelled turn leaves such a request if it was to answer it, or had just made it. None if there is none.
    """
    request = open_request(state.window.messages)
    if request is None:
        return None
    known = {}
    for ordinal, call in enumerate(request.caller.tool_calls):
        entry = context.journal.entry(request.caller.step_id or "", EntryKind.RESULT, ordinal)
        if entry is not None and entry.result is not None:
            known[call.id] = entry.result
    resumption = context.run.resumes
    decisions = resumption.decisions if resumption is not None and not resumption.withdrawn else ()
    step = _messages_step(context, state, "closing", request.caller, now)
    return step, approvals.closing_messages(context.run, request, known, decisions)


def _messages_step(context: TurnContext, state: TurnState, name: str, message: Message, now: datetime) -> StepState:
    """Returns a step that commits messages and calls no model. Its id is derived from the run and a name."""
    step = StepState(replace(new_step(context, state, derive_id("step", context.run.id, name), now), number=0))
    step.accept(JournalledAnswer(message, (), Usage(), state.window.version, None), (), is_journalled=True)
    return step
