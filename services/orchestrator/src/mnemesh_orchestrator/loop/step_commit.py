"""The end of a step: its commit in recall, and the messages of calls that wait for a decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from mnemesh_kit.errors import Internal, InvalidArgument
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

from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.loop.custom_tools import INTERRUPTED, ProgramCalls
from mnemesh_orchestrator.loop.rules import CallOutcome, RulesSolver, Verdict
from mnemesh_orchestrator.loop.services import ContextReader, RecallWrites, RetryPolicy
from mnemesh_orchestrator.loop.state import StepState, Turn, TurnContext, TurnState, new_step
from mnemesh_orchestrator.loop.step_messages import (
    approval_request_id,
    approved_speech_event,
    gated_calls,
    heartbeat_message,
    input_id,
    returns_message,
    stored_answer,
)
from mnemesh_orchestrator.model.conversations import (
    Approval,
    AskedStep,
    ContextWindow,
    OpenRequest,
    PlannedCall,
    Resumption,
    StepCommit,
    open_request,
)
from mnemesh_orchestrator.model.events import EntryKind, JournalEntry, JournalledAnswer, MessageEvent
from mnemesh_orchestrator.model.rules import ToolResult
from mnemesh_orchestrator.model.runs import Run, StopReason

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


_log = structlog.get_logger("mnemesh.loop")


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call."""

    planned: PlannedCall
    returned: ToolReturn
    at: datetime
    violation: bool = False
    """A rule forbade the call."""
    denied: bool = False
    """A person denied the call."""
    calls: ProgramCalls = field(default_factory=ProgramCalls)
    """The calls that a program made."""
    ended_by: str | None = None
    """The tool of an earlier call of the same answer that ended the turn. The call was not run, and does not count."""

    @property
    def has_run(self) -> bool:
        """True if the tool itself was called, with success or not. Only such calls count for the rules."""
        is_refused = self.violation or self.denied or self.ended_by is not None
        return self.planned.problem is None and not is_refused

    @property
    def outcome(self) -> CallOutcome:
        """The outcome as the loop policy reads it."""
        ok = self.returned.status is ToolStatus.SUCCESS
        return CallOutcome(self.planned.call.name, ok, self.planned.heartbeat, self.violation, self.denied)


@dataclass(frozen=True, eq=False)
class StepCommitter:
    """Commits steps to recall. Repeats a commit while recall is unavailable, because its content must not be lost."""

    recall: RecallClient
    writes: RecallWrites
    context: ContextReader
    retry: RetryPolicy

    async def commit(
        self, context: TurnContext, window: ContextWindow, step: StepState, messages: tuple[Message, ...]
    ) -> ContextWindow:
        """Commits a step, and returns the window that follows.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull: recall was unavailable for the policy's whole time.
            Internal: recall refuses the step's content, which is not the caller's.
        """
        answer, conversation_id = step.given, context.run.conversation_id
        commit = StepCommit(
            agent_id=context.agent.id,
            conversation_id=conversation_id,
            run_id=context.run.id,
            epoch=context.lease.recall_epoch,
            step_id=step.id,
            base_version=answer.base_version,
            messages=messages,
            system_text=answer.system_text,
        )
        try:
            outcome = await self.retry.call(
                lambda: self.writes.write(
                    context.lease, lambda epoch: self.recall.commit_step(replace(commit, epoch=epoch))
                )
            )
        except InvalidArgument as error:
            _log.exception("step_refused", step_id=step.id, field=error.field)
            raise Internal("The step could not be stored. The server's log has the details.") from error
        if outcome.window is not None:
            following = outcome.window
        elif outcome.replayed or window.version != answer.base_version:
            following = await self.retry.call(lambda: self.context.window(conversation_id))
        else:
            if context.agent.enable_sleeptime:
                # The end of the turn tells which messages the partners have not seen.
                numbers = (*outcome.sequence_ids, *(0 for _ in messages))
                messages = tuple(replace(message, sequence_id=numbers[i]) for i, message in enumerate(messages))
            following = window.extended(outcome.version, outcome.agent_message_count, answer.system_text, messages)
        return self.context.remember(following)


def committed_messages(turn: Turn, step_id: str) -> tuple[Message, ...]:
    """Returns the messages of a step that the window holds, because the step was committed before a restart.

    A cancelled turn commits its input alone, so the input does not show that its step was committed.
    """
    run = turn.context.run
    inputs = {input_id(run.first_run_id, ordinal) for ordinal in range(len(run.input))}
    window = turn.state.window.messages
    return tuple(message for message in window if message.step_id == step_id and message.id not in inputs)


def step_messages(
    context: TurnContext, step: StepState, results: Sequence[CallResult], verdict: Verdict
) -> tuple[Message, ...]:
    """Returns the messages that a step adds to the window. They depend on the journal only, so a replay is equal."""
    answer = step.given
    message = answer.message
    if step.planned:
        message = stored_answer(
            message,
            step.planned,
            context.takes_heartbeat,
            heartbeat=verdict.goes_on or any(item.gated and item.heartbeat for item in step.planned),
        )
    messages = [replace(item, step_id=item.step_id or step.id) for item in answer.leading]
    if message.content or message.tool_calls:
        messages.append(message)
    return (*messages, *messages_after_calls(context, step.id, results, verdict, message.created_at))


def messages_after_calls(
    context: TurnContext, step_id: str, results: Sequence[CallResult], verdict: Verdict, called_at: datetime
) -> tuple[Message, ...]:
    """Returns the messages that follow a step's calls: one with all returns, and a heartbeat if one is due."""
    messages = []
    at = max((item.at for item in results), default=called_at)
    if results:
        messages.append(returns_message(context.run, step_id, [item.returned for item in results], at))
    reason = verdict.heartbeat
    if reason is None and results and verdict.goes_on:
        reason = context.agent.continuation_message
    if reason is not None:
        messages.append(heartbeat_message(context.run, step_id, reason, at, context.agent.time_zone))
    return tuple(messages)


def cancelled_step_messages(context: TurnContext, step: StepState, entry: JournalEntry) -> tuple[Message, ...]:
    """Returns the messages of a step whose answer is journalled: calls without a result are returned as cancelled."""
    results = []
    for item in step.planned:
        known = context.journal.entry(step.id, EntryKind.RESULT, item.ordinal)
        returned = known.result if known is not None else None
        cancelled = ToolReturn.from_text(item.call.id, item.call.name, ToolStatus.ERROR, CANCELLED)
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
    return step, closing_messages(context.run, request, known, decisions)


def _messages_step(context: TurnContext, state: TurnState, name: str, message: Message, now: datetime) -> StepState:
    """Returns a step that commits messages and calls no model. Its id is derived from the run and a name."""
    step = StepState(replace(new_step(context, state, derive_id("step", context.run.id, name), now), number=0))
    step.accept(JournalledAnswer(message, (), Usage(), state.window.version, None), (), is_journalled=True)
    return step
