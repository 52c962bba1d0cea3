"""The step loop: gather, assemble, ask, journal, run the tools, commit, go on or stop. One for all kinds of agent."""

from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_types.messages import Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.errors import RuleFault
from mnemesh_orchestrator.loop import approvals
from mnemesh_orchestrator.loop import step_messages as answers
from mnemesh_orchestrator.loop.cancellation import TurnCanceller
from mnemesh_orchestrator.loop.context_budget import ContextBudget
from mnemesh_orchestrator.loop.context_builder import ContextBuilder
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.model_call import ModelCaller
from mnemesh_orchestrator.loop.policy import StepOutcome, Verdict
from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import Answered, Turn, committed
from mnemesh_orchestrator.loop.step_commit import StepCommitter, after_calls, journalled, step_messages
from mnemesh_orchestrator.loop.step_records import conclude, new_step
from mnemesh_orchestrator.loop.tool_calls import Carried, ToolExecution
from mnemesh_orchestrator.model.approvals import Resumption
from mnemesh_orchestrator.model.journal import EntryKind, JournalEntry, JournalledAnswer
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.model.seen_revisions import SeenRevisions
from mnemesh_orchestrator.model.steps import StepStatus
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.runs.event_broker import EventBroker
from mnemesh_orchestrator.store.base import RunStore


class Engine:
    """Carries out the steps of a turn. What it raises ends the run; everything committed before stands."""

    def __init__(
        self,
        store: RunStore,
        recorder: JournalWriter,
        hub: EventBroker,
        recall: RecallPort,
        context: ContextBuilder,
        fitting: ContextBudget,
        execution: ToolExecution,
        patience: RetryPolicy,
        clock: Clock,
    ) -> None:
        self._recorder = recorder
        self._context = context
        self._execution = execution
        self._patience = patience
        self._clock = clock
        self._fitting = fitting
        self._asking = ModelCaller(fitting, recorder, clock)
        self._writer = StepCommitter(recorder, hub, recall, context, patience, clock)
        self._closing = TurnCanceller(store, self._writer, clock)

    async def carry_out(self, turn: Turn) -> StopReason:
        """Steps until the turn stops.

        Raises:
            ProviderError: the model did not answer, and nothing of the step is kept.
            ContextWindowOverflow, SystemPromptOverflow: the next request does not fit, whatever is taken away.
            RuleFault: a rule gives a tool what it does not take.
            LeaseLost: somebody else carries the run out now.
        """
        await self._fitting.resume(turn)
        resumption = turn.run.resumes
        verdict = await (self._step(turn) if resumption is None else self._resume(turn, resumption))
        while verdict.stop is None:
            turn.core = await self._patience.call(
                lambda: self._context.core_memory(turn.agent.id, turn.conversation.holder_id)
            )
            verdict = await self._step(turn)
        if verdict.fault is not None:
            raise RuleFault(verdict.fault.removeprefix("Error: "))
        return verdict.stop

    async def cancel(self, turn: Turn) -> None:
        """Leaves a valid history behind: see TurnCanceller."""
        await self._closing.cancel(turn)

    async def _resume(self, turn: Turn, resumption: Resumption) -> Verdict:
        """Carries out what had waited for its decision, and commits it before the model is asked."""
        if resumption.withdrawn:
            await self._closing.cancel(turn)
            return Verdict(StopReason.CANCELLED)
        asked = resumption.asked
        answered = approvals.resumed(
            turn, resumption, new_step(turn, answers.step_id(turn.run.id, 0), self._clock.now())
        )
        if turn.entry(asked.step_id, EntryKind.DECISION) is None:
            entry = JournalEntry(asked.step_id, EntryKind.DECISION, self._clock.now())
            await self._recorder.record(turn, asked.step_id, entry, [approvals.shown_answer(turn, resumption)])
        turn.solver = replace(turn.solver, history=asked.history, last_result=asked.last_result)
        turn.sight = SeenRevisions(asked.seen) if asked.seen is not None else None
        carried = await self._execution.carry_out(turn, asked.step_id, asked.calls)
        verdict = self._verdict(turn, answered, carried)
        answer = approvals.answer_message(turn, resumption)
        if answer.id not in {message.id for message in turn.window.messages}:
            returns = after_calls(turn, asked.step_id, carried, verdict, asked.message.created_at)
            await self._writer.commit(turn, answered, (replace(answer, step_id=asked.step_id), *returns))
        return Verdict() if turn.pending and verdict.fault is None else verdict

    async def _pause(self, turn: Turn, answered: Answered, *, committed: bool) -> Verdict:
        """Commits an answer whose calls wait for a decision, and the request for it."""
        verdict = Verdict(StopReason.REQUIRES_APPROVAL)
        messages = (*step_messages(turn, answered, (), verdict), approvals.request_message(turn, answered))
        if not committed:
            await self._writer.commit(turn, answered, messages)
        turn.pending = ()
        turn.progress.approval = approvals.approval(turn, answered, messages[-2], self._clock.now())
        conclude(turn, answered.step, answered.answer.usage, verdict.stop, self._clock.now())
        return verdict

    async def _step(self, turn: Turn) -> Verdict:
        turn.progress.number += 1
        step_id = answers.step_id(turn.run.id, turn.progress.number)
        held = committed(turn, step_id)
        known = turn.entry(step_id, EntryKind.ANSWER)
        if known is None and held:
            return self._recognise(turn, step_id, held)
        answered = (
            journalled(turn, known, self._clock.now())
            if known is not None
            else await self._asking.until_fit(turn, step_id)
        )
        message = answered.answer.message
        if turn.policy.requires_tool_call and not message.tool_calls:
            conclude(
                turn,
                answered.step,
                answered.answer.usage,
                StopReason.NO_TOOL_CALL,
                self._clock.now(),
                StepStatus.FAILED,
            )
            return Verdict(StopReason.NO_TOOL_CALL)
        if message.tool_calls and not answered.journalled:
            answered = await self._writer.journal(turn, answered)
        if any(item.gated for item in answered.planned):
            return await self._pause(turn, answered, committed=bool(held))
        seen = answered.answer.seen
        turn.sight = SeenRevisions(seen) if seen is not None else None
        carried = await self._execution.carry_out(turn, step_id, answered.planned)
        return await self._conclude_and_commit(turn, answered, carried, committed=bool(held))

    async def _conclude_and_commit(
        self, turn: Turn, answered: Answered, carried: tuple[Carried, ...], *, committed: bool
    ) -> Verdict:
        verdict = self._verdict(turn, answered, carried)
        is_due = self._fitting.is_due(turn, answered, verdict.stop)
        if not answered.journalled and (is_due or verdict.stop is not StopReason.END_TURN):
            answered = await self._writer.journal(turn, answered)
        messages = step_messages(turn, answered, carried, verdict)
        if messages and not committed:
            await self._writer.commit(turn, answered, messages)
        turn.pending = ()
        conclude(turn, answered.step, answered.answer.usage, verdict.stop, self._clock.now())
        if is_due:
            await self._fitting.after_step(turn, answered.step.id)
        return verdict

    def _verdict(self, turn: Turn, answered: Answered, carried: tuple[Carried, ...]) -> Verdict:
        for item in carried:
            if item.planned.is_rules_fault:
                return Verdict(StopReason.INVALID_TOOL_CALL, fault=item.planned.problem)
        return turn.policy.decide(
            StepOutcome(
                calls=tuple(item.outcome for item in carried),
                length_cut=answered.answer.length_cut,
                last=turn.progress.last,
                solver=turn.solver,
                available=turn.toolbox.names,
            )
        )

    def _recognise(self, turn: Turn, step_id: str, held: tuple[Message, ...]) -> Verdict:
        """A last step that was committed before a restart and has no journal: it was plain text, and ended the turn."""
        turn.goes_on_with(next((message.model for message in held if message.model), None))
        step = new_step(turn, step_id, self._clock.now())
        turn.pending = ()
        for message in held:
            if message.id == answers.answer_id(step_id):
                answer = JournalledAnswer(message, (), Usage(), turn.window.version, None)
                self._writer.tell(turn, Answered(answer, (), journalled=False, step=step))
        conclude(turn, step, Usage(), StopReason.END_TURN, self._clock.now())
        return Verdict(StopReason.END_TURN)
