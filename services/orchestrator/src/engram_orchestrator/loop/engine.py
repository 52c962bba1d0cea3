"""The step loop: gather, assemble, ask, journal, run the tools, commit, go on or stop. One for all kinds of agent."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

import structlog
from engram_kit.clock import Clock
from engram_kit.errors import Internal
from engram_kit.ids import derive_id
from engram_kit.tracing import current_trace_id

from engram_orchestrator.llm.errors import STAYS_AWAY, ContextOverflow, ProviderBadAnswer, ProviderUnavailable
from engram_orchestrator.llm.port import LlmAnswer, LlmEvent, LlmRequest
from engram_orchestrator.loop import answers, approvals
from engram_orchestrator.loop.context import Assembled, ContextBuilder, extended
from engram_orchestrator.loop.deltas import DeltaStream
from engram_orchestrator.loop.execution import Carried, ToolExecution
from engram_orchestrator.loop.fitting import COMPACTIONS_AT_MOST, Fitting
from engram_orchestrator.loop.hub import EventHub
from engram_orchestrator.loop.policy import StepOutcome, Verdict
from engram_orchestrator.loop.recording import Recorder
from engram_orchestrator.loop.tiers import Patience
from engram_orchestrator.loop.turn import Answered, Committing, Turn
from engram_orchestrator.model.approvals import Resumption, open_request
from engram_orchestrator.model.events import Shown, StepStarted
from engram_orchestrator.model.messages import Message, ToolReturn, ToolStatus, Usage
from engram_orchestrator.model.runs import (
    EntryKind,
    JournalEntry,
    JournalledAnswer,
    Step,
    StepStatus,
    StopReason,
)
from engram_orchestrator.model.sight import Sight
from engram_orchestrator.ports import RecallPort, StepCommit
from engram_orchestrator.store.base import RunStore

_log = structlog.get_logger("engram.loop")

_ASKED_AT_MOST = 3
"""How often a step is asked whose answer breaks off."""
_FORMED_AT_MOST = 3
"""How often a step is asked whose answer has not the agent's response format."""
_ASKED_BY_ONE_HOLDER = 2 * _ASKED_AT_MOST * _FORMED_AT_MOST
"""At most, with the fallback model."""


class Engine:
    """Carries out the steps of a turn. What it raises ends the run; everything committed before stands."""

    def __init__(
        self,
        store: RunStore,
        recorder: Recorder,
        hub: EventHub,
        recall: RecallPort,
        context: ContextBuilder,
        fitting: Fitting,
        execution: ToolExecution,
        patience: Patience,
        clock: Clock,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._hub = hub
        self._recall = recall
        self._context = context
        self._fitting = fitting
        self._execution = execution
        self._patience = patience
        self._clock = clock

    async def carry_out(self, turn: Turn) -> StopReason:
        """Steps until the turn stops.

        Raises:
            ProviderError: the model did not answer, and nothing of the step is kept.
            ContextWindowOverflow, SystemPromptOverflow: the next request does not fit, whatever is taken away.
            LeaseLost: somebody else carries the run out now.
        """
        await self._fitting.resume(turn)
        resumption = turn.run.resumes
        verdict = await (self._step(turn) if resumption is None else self._resume(turn, resumption))
        while verdict.stop is None:
            turn.core = await self._patience.with_tier(
                lambda: self._context.core_memory(turn.agent.id, turn.conversation.holder_id)
            )
            verdict = await self._step(turn)
        return verdict.stop

    async def _resume(self, turn: Turn, resumption: Resumption) -> Verdict:
        """Carries out what had waited for its decision, and commits it before the model is asked."""
        if resumption.withdrawn:
            await self.cancel(turn)
            return Verdict(StopReason.CANCELLED)
        asked = resumption.asked
        answered = approvals.resumed(turn, resumption, self._new_step(turn, answers.step_id(turn.run.id, 0)))
        if turn.entry(asked.step_id, EntryKind.DECISION) is None:
            entry = JournalEntry(asked.step_id, EntryKind.DECISION, self._clock.now())
            await self._recorder.record(turn, asked.step_id, entry, [approvals.shown_answer(turn, resumption)])
        turn.solver = replace(turn.solver, history=asked.history, last_result=asked.last_result)
        turn.sight = Sight(asked.seen) if asked.seen is not None else None
        carried = await self._execution.carry_out(turn, asked.step_id, asked.calls)
        verdict = self._verdict(turn, answered, carried)
        answer = approvals.answer_message(turn, resumption)
        if answer.id not in {message.id for message in turn.window.messages}:
            returns = _after_calls(turn, asked.step_id, carried, verdict, asked.message.created_at)
            await self._commit(turn, answered, (replace(answer, step_id=asked.step_id), *returns))
        return Verdict() if turn.pending else verdict

    async def _pause(self, turn: Turn, answered: Answered, *, committed: bool) -> Verdict:
        """Commits an answer whose calls wait for a decision, and the request for it."""
        verdict = Verdict(StopReason.REQUIRES_APPROVAL)
        messages = (*self._messages(turn, answered, (), verdict), approvals.request_message(turn, answered))
        if not committed:
            await self._commit(turn, answered, messages)
        turn.pending = ()
        turn.progress.approval = approvals.approval(turn, answered, messages[-2], self._clock.now())
        self._conclude(turn, answered.step, answered.answer.usage, verdict.stop)
        return verdict

    async def _step(self, turn: Turn) -> Verdict:
        turn.progress.number += 1
        step_id = answers.step_id(turn.run.id, turn.progress.number)
        committed = _committed(turn, step_id)
        known = turn.entry(step_id, EntryKind.ANSWER)
        if known is None and committed:
            return self._recognise(turn, step_id, committed)
        answered = self._from_journal(turn, known) if known is not None else await self._ask_until_fit(turn, step_id)
        message = answered.answer.message
        if turn.policy.requires_tool_call and not message.tool_calls:
            self._conclude(turn, answered.step, answered.answer.usage, StopReason.NO_TOOL_CALL, StepStatus.FAILED)
            return Verdict(StopReason.NO_TOOL_CALL)
        if message.tool_calls and not answered.journalled:
            answered = await self._journal(turn, answered)
        if any(item.gated for item in answered.planned):
            return await self._pause(turn, answered, committed=bool(committed))
        seen = answered.answer.seen
        turn.sight = Sight(seen) if seen is not None else None
        carried = await self._execution.carry_out(turn, step_id, answered.planned)
        return await self._conclude_and_commit(turn, answered, carried, committed=bool(committed))

    async def _conclude_and_commit(
        self, turn: Turn, answered: Answered, carried: tuple[Carried, ...], *, committed: bool
    ) -> Verdict:
        verdict = self._verdict(turn, answered, carried)
        is_due = self._fitting.is_due(turn, answered, verdict.stop)
        if not answered.journalled and (is_due or verdict.stop is not StopReason.END_TURN):
            answered = await self._journal(turn, answered)
        messages = self._messages(turn, answered, carried, verdict)
        if messages and not committed:
            await self._commit(turn, answered, messages)
        turn.pending = ()
        self._conclude(turn, answered.step, answered.answer.usage, verdict.stop)
        if is_due:
            await self._fitting.after_step(turn, answered.step.id)
        return verdict

    def _verdict(self, turn: Turn, answered: Answered, carried: tuple[Carried, ...]) -> Verdict:
        if any(item.planned.is_rules_fault for item in carried):
            return Verdict(StopReason.INVALID_TOOL_CALL)
        return turn.policy.decide(
            StepOutcome(
                calls=tuple(item.outcome for item in carried),
                length_cut=answered.answer.length_cut,
                last=turn.progress.last,
                solver=turn.solver,
                available=turn.toolbox.names,
            )
        )

    async def cancel(self, turn: Turn) -> None:
        """Leaves a valid history behind: a step whose answer is journalled is committed with what its tools came to.

        A commit that was cut off is made again: nobody knows whether it took place.
        """
        if turn.committing is not None:
            step = turn.committing
            await self._commit(turn, step.answered, step.messages)
            if step.answered.step.number:
                self._conclude(turn, step.answered.step, step.answered.answer.usage, StopReason.CANCELLED)
            await self._close(turn)
            return
        turn.journal = {(e.step_id, e.kind, e.ordinal): e for e in await self._store.journal(turn.run.id)}
        # Of a run that was taken up the journal may be ahead of what was carried out again.
        turn.progress.number = max(turn.progress.number, 1)
        while (entry := turn.entry(answers.step_id(turn.run.id, turn.progress.number), EntryKind.ANSWER)) is not None:
            if not _committed(turn, entry.step_id):
                await self._commit_cancelled(turn, entry)
            turn.progress.number += 1
        await self._close(turn)

    async def _close(self, turn: Turn) -> None:
        """Closes the request for approval that a cancelled turn was to answer, or had just made."""
        request = open_request(turn.window.messages)
        if request is None:
            return
        step_id, resumption = request.caller.step_id or "", turn.run.resumes
        known = {}
        for ordinal, call in enumerate(request.caller.tool_calls):
            entry = turn.entry(step_id, EntryKind.RESULT, ordinal)
            if entry is not None and entry.result is not None:
                known[call.id] = entry.result
        decisions = resumption.decisions if resumption is not None and not resumption.withdrawn else ()
        step = replace(self._new_step(turn, derive_id("step", turn.run.id, "closing")), number=0)
        answer = JournalledAnswer(request.caller, (), Usage(), turn.window.version, None)
        messages = approvals.closing(turn.run, request, known, decisions)
        await self._commit(turn, Answered(answer, (), journalled=True, step=step), messages)

    async def _commit_cancelled(self, turn: Turn, entry: JournalEntry) -> None:
        step_id, answered = entry.step_id, self._from_journal(turn, entry)
        carried = []
        for item in answered.planned:
            known = turn.entry(step_id, EntryKind.RESULT, item.ordinal)
            result = known.result if known is not None else None
            cancelled = ToolReturn(item.call.id, item.call.name, ToolStatus.ERROR, approvals.CANCELLED)
            carried.append(Carried(item, result or cancelled, known.at if known is not None else entry.at))
        messages = self._messages(turn, answered, tuple(carried), Verdict(StopReason.CANCELLED))
        await self._commit(turn, answered, messages)
        self._conclude(turn, answered.step, answered.answer.usage, StopReason.CANCELLED, StepStatus.CANCELLED)

    def _recognise(self, turn: Turn, step_id: str, committed: tuple[Message, ...]) -> Verdict:
        """A last step that was committed before a restart and has no journal: it was plain text, and ended the turn."""
        turn.goes_on_with(next((message.model for message in committed if message.model), None))
        step = self._new_step(turn, step_id)
        turn.pending = ()
        for message in committed:
            if message.id == answers.answer_id(step_id):
                answer = JournalledAnswer(message, (), Usage(), turn.window.version, None)
                self._tell(turn, Answered(answer, (), journalled=False, step=step))
        self._conclude(turn, step, Usage(), StopReason.END_TURN)
        return Verdict(StopReason.END_TURN)

    async def _ask_until_fit(self, turn: Turn, step_id: str) -> Answered:
        """Asks until an answer has the form that the agent's answers are to have; the model is told what is wrong.

        Raises:
            ProviderBadAnswer: it never has.
        """
        turn.asked, notes, spent = 0, turn.notes, Usage()
        for attempt in range(1, _FORMED_AT_MOST + 1):
            answered = await self._ask_someone(turn, step_id)
            spent += answered.answer.usage
            answered = replace(answered, answer=replace(answered.answer, usage=spent))
            problem = answers.format_problem(turn, answered.answer.message)
            if problem is None or answered.answer.length_cut:
                turn.notes = notes
                return answered
            _log.warning("the answer has not the form that is wanted", attempt=attempt, problem=problem)
            turn.notes = (*notes, f"Your answer was not shown to the user: {problem}. Answer again, with JSON alone.")
        turn.notes = notes
        raise ProviderBadAnswer(
            f"The model's answer is not in the agent's response format: {problem}.", provider=turn.model.info.provider
        )

    async def _ask_someone(self, turn: Turn, step_id: str) -> Answered:
        """Asks the model; where it stays away its fallback, which then has the turn to its end."""
        try:
            return await self._ask(turn, step_id)
        except STAYS_AWAY as error:
            fallback = turn.model.fallback
            if fallback is None:
                raise
            handle = fallback.info.handle
            _log.warning("the model stays away; its fallback goes on", fallback=handle, error=error.message)
            turn.goes_on_with(handle)
            return await self._ask(turn, step_id)

    async def _ask(self, turn: Turn, step_id: str) -> Answered:
        """Asks the model until it has answered whole, with a smaller window where the provider wants one."""
        refusals, refused = 0, None
        while True:
            assembled = await self._fitting.assemble(turn, step_id)
            if refused is not None and refusals == 1 and assembled.request == refused[0]:
                raise refused[1]  # nothing could be taken away
            try:
                answered = await self._asked(turn, step_id, assembled)
            except ContextOverflow as error:
                if refusals == COMPACTIONS_AT_MOST:
                    raise
                refusals, refused = refusals + 1, (assembled.request, error)
                self._fitting.refused(turn, error)
                continue
            turn.reported = answered.answer.usage.prompt_tokens
            self._fitting.learn(turn, turn.reported)
            return answered

    async def _asked(self, turn: Turn, step_id: str, assembled: Assembled) -> Answered:
        """Asks the model with one request."""
        began = self._clock.monotonic()
        step = self._new_step(turn, step_id)
        for attempt in range(1, _ASKED_AT_MOST + 1):
            turn.asked += 1
            # After a takeover the numbers go on: what is asked again replaces what was heard before.
            number = turn.asked + _ASKED_BY_ONE_HOLDER * turn.progress.claims
            self._recorder.live(turn, step_id, StepStarted(turn.progress.number, number))
            try:
                answer = await self._stream(turn, step_id, assembled.request)
            except ProviderUnavailable as error:
                # With a status the provider said no, and the adapter has asked often enough.
                if attempt == _ASKED_AT_MOST or error.status is not None:
                    raise
                _log.warning("the model's answer broke off; asking again", attempt=attempt, error=error.message)
                continue
            step = replace(step, attempts=turn.asked, model_ms=round((self._clock.monotonic() - began) * 1e3))
            return self._answered(turn, assembled, answer, step)
        raise Internal("the last attempt neither answered nor failed")

    def _answered(self, turn: Turn, assembled: Assembled, answer: LlmAnswer, step: Step) -> Answered:
        self._recorder.trace(turn, step, answer)
        message = answers.answer_message(turn, step.id, answer, self._clock.now())
        if not (message.content or message.tool_calls or answers.ran_into_limit(answer) or _may_be_silent(turn)):
            raise ProviderBadAnswer("The model's answer was empty.", provider=turn.model.info.provider)
        planned = answers.plan(message, turn.toolbox, turn.solver)
        stored = JournalledAnswer(
            message=message,
            leading=turn.pending,
            usage=answer.usage,
            base_version=turn.window.version,
            system_text=assembled.system_text if turn.run.config.override_system is None else None,
            length_cut=answers.ran_into_limit(answer),
            attempts=step.attempts,
            model_ms=step.model_ms or 0,
            seen={block.label: block.revision for block in turn.core.blocks} if message.tool_calls else None,
            gated=tuple(item.ordinal for item in planned if item.gated),
        )
        return Answered(stored, planned, journalled=False, step=step)

    def _from_journal(self, turn: Turn, entry: JournalEntry) -> Answered:
        if entry.answer is None:
            raise Internal("a journalled answer has no payload")
        answer = entry.answer
        turn.goes_on_with(answer.message.model)
        step = replace(
            self._new_step(turn, entry.step_id),
            created_at=entry.at,
            attempts=answer.attempts,
            model_ms=answer.model_ms,
        )
        planned = approvals.regated(answers.plan(answer.message, turn.toolbox, turn.solver), answer.gated)
        return Answered(answer, planned, journalled=True, step=step)

    async def _stream(self, turn: Turn, step_id: str, request: LlmRequest) -> LlmAnswer:
        show = self._deltas(turn, step_id) if turn.run.config.stream_tokens else None
        try:
            async with aclosing(turn.model.client.stream(request)) as events:  # type: ignore[type-var]
                return await self._last(turn, events, show)
        finally:
            if show is not None:
                show.flush()

    async def _last(self, turn: Turn, events: AsyncIterator[LlmEvent], show: DeltaStream | None) -> LlmAnswer:
        answer: LlmAnswer | None = None
        async for event in events:
            if turn.progress.first_token_ms is None:
                turn.progress.first_token_ms = round((self._clock.monotonic() - turn.progress.began) * 1e3)
            if show is not None:
                show.take(event)
            if isinstance(event, LlmAnswer):
                answer = event
        if answer is None:
            raise ProviderUnavailable("The model's answer broke off.", provider=turn.model.info.provider)
        return answer

    def _deltas(self, turn: Turn, step_id: str) -> DeltaStream:
        config = turn.run.config
        return DeltaStream(
            answers.answer_id(step_id),
            lambda ordinal: answers.call_id(step_id, ordinal),
            lambda delta: self._recorder.live(turn, step_id, delta),
            (config.assistant_tool_name, config.assistant_tool_argument)
            if config.assistant_messages and config.assistant_tool_name not in turn.toolbox.gated
            else None,
            text_is_reasoning=turn.policy.requires_tool_call,
            thinks_in_arguments=bool(turn.model.settings.inner_thoughts_in_kwargs),
        )

    async def _journal(self, turn: Turn, answered: Answered) -> Answered:
        """Stores the answer before anything that follows from it."""
        entry = JournalEntry(answered.step.id, EntryKind.ANSWER, self._clock.now(), answer=answered.answer)
        await self._recorder.record(turn, answered.step.id, entry, self._shown(turn, answered))
        return replace(answered, journalled=True)

    def _tell(self, turn: Turn, answered: Answered) -> None:
        """Tells of an answer that no journal holds, once its commit does; the end of the run stores these events."""
        events = turn.progress.durable(self._clock.now(), answered.step.id, *self._shown(turn, answered))
        turn.progress.tell(events)
        self._hub.publish(events)

    def _shown(self, turn: Turn, answered: Answered) -> list[Shown]:
        return answers.shown(answered.answer.message, answered.planned, turn.run.config)

    def _messages(
        self, turn: Turn, answered: Answered, carried: tuple[Carried, ...], verdict: Verdict
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
        return (*messages, *_after_calls(turn, answered.step.id, carried, verdict, message.created_at))

    async def _commit(self, turn: Turn, answered: Answered, messages: tuple[Message, ...]) -> None:
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
        outcome = await self._patience.with_tier(lambda: self._recall.commit_step(commit))
        if outcome.window is not None:
            turn.window = outcome.window
        elif outcome.replayed or turn.window.version != answer.base_version:
            turn.window = await self._patience.with_tier(lambda: self._context.window(turn.run.conversation_id))
        else:
            turn.window = extended(
                turn.window, outcome.version, outcome.agent_message_count, answer.system_text, messages
            )
        self._context.remember(turn.window)
        turn.committing = None
        if not answered.journalled:
            self._tell(turn, answered)

    def _conclude(
        self,
        turn: Turn,
        step: Step,
        usage: Usage,
        stop: StopReason | None,
        status: StepStatus = StepStatus.SUCCESS,
    ) -> None:
        """Counts a step that is over; its record goes along with the next write."""
        now = self._clock.now()
        turn.progress.usage += usage
        turn.progress.concluded += 1
        turn.progress.steps.append(
            replace(
                step,
                status=status,
                stop_reason=stop,
                usage=usage,
                total_ms=round((now - step.created_at).total_seconds() * 1e3),
                completed_at=now,
            )
        )

    def _new_step(self, turn: Turn, step_id: str) -> Step:
        info = turn.model.info
        return Step(
            id=step_id,
            run_id=turn.run.id,
            agent_id=turn.agent.id,
            conversation_id=turn.run.conversation_id,
            number=turn.progress.number,
            model=info.handle,
            provider=info.provider,
            endpoint=info.endpoint,
            context_window=turn.model.settings.context_window or info.context_window,
            created_at=self._clock.now(),
            trace_id=current_trace_id(),
        )


def _committed(turn: Turn, step_id: str) -> tuple[Message, ...]:
    """What the window holds of the step, where it was committed before a restart."""
    return tuple(message for message in turn.window.messages if message.step_id == step_id)


def _after_calls(
    turn: Turn, step_id: str, carried: tuple[Carried, ...], verdict: Verdict, called_at: datetime
) -> tuple[Message, ...]:
    """What follows the calls of a step: one message with all returns, and the heartbeat where one is due."""
    messages = []
    at = max((item.at for item in carried), default=called_at)
    if carried:
        messages.append(answers.returns_message(turn, step_id, [item.returned for item in carried], at))
    if verdict.heartbeat is not None:
        messages.append(answers.heartbeat_message(turn, step_id, verdict.heartbeat, at))
    return tuple(messages)


def _may_be_silent(turn: Turn) -> bool:
    """Whether an empty answer is one: models that have done what they were told may end their turn without a word."""
    return not (turn.pending or turn.policy.requires_tool_call)
