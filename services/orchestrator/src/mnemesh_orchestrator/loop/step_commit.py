"""Writing a step down: its answer into the journal before its tools run, its messages into recall behind them."""

from dataclasses import replace
from datetime import datetime

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import Internal
from mnemesh_types.messages import Message

from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop import step_messages as answers
from mnemesh_orchestrator.loop.context_builder import ContextBuilder, extended
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.policy import Verdict
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import Answered, Committing, Turn
from mnemesh_orchestrator.loop.step_records import new_step
from mnemesh_orchestrator.loop.tool_calls import Carried
from mnemesh_orchestrator.model.context_window import StepCommit
from mnemesh_orchestrator.model.events import MessageEvent
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.runs.event_broker import EventBroker


class StepCommitter:
    """Journals answers and commits steps; clients hear of an answer once one of the two holds it."""

    def __init__(
        self,
        recorder: JournalWriter,
        hub: EventBroker,
        recall: RecallPort,
        context: ContextBuilder,
        patience: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._recorder = recorder
        self._hub = hub
        self._recall = recall
        self._context = context
        self._patience = patience
        self._clock = clock

    async def journal(self, turn: Turn, answered: Answered) -> Answered:
        """Stores the answer before anything that follows from it."""
        entry = JournalEntry(answered.step.id, EntryKind.ANSWER, self._clock.now(), answer=answered.answer)
        await self._recorder.record(turn, answered.step.id, entry, _shown(turn, answered))
        return replace(answered, journalled=True)

    async def commit(self, turn: Turn, answered: Answered, messages: tuple[Message, ...]) -> None:
        """Commits the step to recall, however long that takes: what it holds must not be lost."""
        answer = answered.answer
        commit = StepCommit(
            agent_id=turn.agent.id,
            conversation_id=turn.run.conversation_id,
            run_id=turn.run.id,
            epoch=turn.lease.epoch,
            step_id=answered.step.id,
            base_version=answer.base_version,
            messages=messages,
            system_text=answer.system_text,
        )
        turn.committing = Committing(answered, messages)
        outcome = await self._patience.call(lambda: self._recall.commit_step(commit))
        if outcome.window is not None:
            turn.window = outcome.window
        elif outcome.replayed or turn.window.version != answer.base_version:
            turn.window = await self._patience.call(lambda: self._context.window(turn.run.conversation_id))
        else:
            turn.window = extended(
                turn.window, outcome.version, outcome.agent_message_count, answer.system_text, messages
            )
        self._context.remember(turn.window)
        turn.committing = None
        if not answered.journalled:
            self.tell(turn, answered)

    def tell(self, turn: Turn, answered: Answered) -> None:
        """Tells of an answer that no journal holds, once its commit does; the end of the run stores these events."""
        events = turn.progress.durable(self._clock.now(), answered.step.id, *_shown(turn, answered))
        turn.progress.tell(events)
        self._hub.publish(events)


def journalled(turn: Turn, entry: JournalEntry, now: datetime) -> Answered:
    """An answer that the journal holds, as it is to be carried out."""
    if entry.answer is None:
        raise Internal("a journalled answer has no payload")
    answer = entry.answer
    turn.goes_on_with(answer.message.model)
    step = replace(
        new_step(turn, entry.step_id, now),
        created_at=entry.at,
        attempts=answer.attempts,
        model_ms=answer.model_ms,
    )
    planned = approvals.regated(answers.plan(answer.message, turn.toolbox, turn.solver), answer.gated)
    return Answered(answer, planned, journalled=True, step=step)


def step_messages(
    turn: Turn, answered: Answered, carried: tuple[Carried, ...], verdict: Verdict
) -> tuple[Message, ...]:
    """What the step adds to the window. A function of the journal alone, so that a replay commits the same."""
    answer = answered.answer
    message = answers.without_loop_arguments(
        answer.message,
        answered.planned,
        lambda name: turn.policy.injects_heartbeat and not turn.solver.is_terminal(name),
        heartbeat=verdict.goes_on or any(item.gated and item.heartbeat for item in answered.planned),
    )
    messages = [replace(item, step_id=answered.step.id) for item in answer.leading]
    if message.content or message.tool_calls:
        messages.append(message)
    return (*messages, *after_calls(turn, answered.step.id, carried, verdict, message.created_at))


def after_calls(
    turn: Turn, step_id: str, carried: tuple[Carried, ...], verdict: Verdict, called_at: datetime
) -> tuple[Message, ...]:
    """What follows the calls of a step: one message with all returns, an event that says to go on, if one is due."""
    messages = []
    at = max((item.at for item in carried), default=called_at)
    if carried:
        messages.append(answers.returns_message(turn, step_id, [item.returned for item in carried], at))
    event = verdict.heartbeat
    if event is None and carried and verdict.goes_on:
        event = turn.agent.continuation_message
    if event is not None:
        messages.append(answers.heartbeat_message(turn, step_id, event, at))
    return tuple(messages)


def _shown(turn: Turn, answered: Answered) -> list[MessageEvent]:
    return answers.shown(answered.answer.message, answered.planned, turn.run.config)
