"""The commit of a step to recall: its messages, and the window that follows from them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import structlog
from mnemesh_kit.errors import Internal, InvalidArgument
from mnemesh_types.messages import Message

from mnemesh_orchestrator.loop.call_results import CallResult
from mnemesh_orchestrator.loop.context_reader import ContextReader
from mnemesh_orchestrator.loop.policy import Verdict
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import StepState, Turn, TurnContext
from mnemesh_orchestrator.loop.step_messages import heartbeat_message, input_id, returns_message, stored_answer
from mnemesh_orchestrator.model.context_window import ContextWindow, StepCommit
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.ports.recall_writes import RecallWrites

_log = structlog.get_logger("mnemesh.loop")


class StepCommitter:
    """Commits steps to recall. Repeats a commit while recall is unavailable, because its content must not be lost."""

    def __init__(self, recall: RecallPort, writes: RecallWrites, context: ContextReader, retry: RetryPolicy) -> None:
        self._recall = recall
        self._writes = writes
        self._context = context
        self._retry = retry

    async def commit(
        self, context: TurnContext, window: ContextWindow, step: StepState, messages: tuple[Message, ...]
    ) -> ContextWindow:
        """Commits a step, and returns the window that follows.

        Raises:
            LeaseLost: another process holds the run now.
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
            outcome = await self._retry.call(
                lambda: self._writes.write(
                    context.lease, lambda epoch: self._recall.commit_step(replace(commit, epoch=epoch))
                )
            )
        except InvalidArgument as error:
            _log.exception("step_refused", step_id=step.id, field=error.field)
            raise Internal("The step could not be stored. The server's log has the details.") from error
        if outcome.window is not None:
            following = outcome.window
        elif outcome.replayed or window.version != answer.base_version:
            following = await self._retry.call(lambda: self._context.window(conversation_id))
        else:
            if context.agent.enable_sleeptime:
                # The end of the turn tells which messages the partners have not seen.
                numbers = (*outcome.sequence_ids, *(0 for _ in messages))
                messages = tuple(replace(message, sequence_id=numbers[i]) for i, message in enumerate(messages))
            following = window.extended(outcome.version, outcome.agent_message_count, answer.system_text, messages)
        return self._context.remember(following)


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
