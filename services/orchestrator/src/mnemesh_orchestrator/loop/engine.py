"""The step loop, one for all agent types.

Gather, assemble, call the model, journal, run the tools, commit, continue or stop. Compact when the budget says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.errors import Internal
from mnemesh_kit.time import Clock
from mnemesh_types.agents import RunError
from mnemesh_types.messages import Message
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.builtin.files import OPEN_FILES
from mnemesh_orchestrator.errors import ContextWindowOverflow, LeaseLost, RuleFault, SystemPromptOverflow
from mnemesh_orchestrator.llm.errors import FALLBACK_ERRORS, ContextOverflow, ProviderBadAnswer, ProviderRefused
from mnemesh_orchestrator.llm.port import AttemptBudget
from mnemesh_orchestrator.loop import step_commit
from mnemesh_orchestrator.loop.compaction import TurnCompaction, shows_compactions
from mnemesh_orchestrator.loop.model_call import MAX_FORMAT_CALLS, ModelCaller, format_problem
from mnemesh_orchestrator.loop.request_assembly import (
    MAX_COMPACTIONS,
    Assembled,
    ContextBudget,
    RequestAssembler,
    least_gain,
    limit,
    require_space,
)
from mnemesh_orchestrator.loop.rules import (
    STOP_ERRORS,
    StepOutcome,
    Verdict,
    failure,
    plan_calls,
    starts_runs,
    with_gates,
)
from mnemesh_orchestrator.loop.services import CUSTOM_TOOLS, ContextReader, RetryPolicy, note_of, stored_tool_ids
from mnemesh_orchestrator.loop.state import OpenCommit, StepState, Turn, concluded, new_step
from mnemesh_orchestrator.loop.step_commit import (
    CallResult,
    StepCommitter,
    cancelled_step_messages,
    closing_step,
    committed_messages,
    input_step,
    messages_after_calls,
    step_messages,
)
from mnemesh_orchestrator.loop.step_messages import answer_events, answer_id, approval_response_event, step_id
from mnemesh_orchestrator.loop.tool_calls import ToolExecution, hold_committed
from mnemesh_orchestrator.model.conversations import Resumption
from mnemesh_orchestrator.model.core_memory import CoreMemory
from mnemesh_orchestrator.model.events import EntryKind, JournalEntry, JournalledAnswer
from mnemesh_orchestrator.model.runs import StepStatus, StopReason
from mnemesh_orchestrator.store.budgets import BudgetStore

_log = structlog.get_logger("mnemesh.loop")

_GENERAL_REFUSALS: Final = (None, 400, 422)
"""The statuses of a refused request that do not name the cause."""


@dataclass(frozen=True, eq=False)
class StepAnswers:
    """Asks the model of a turn for the answer of a step."""

    requests: RequestAssembler
    budget: ContextBudget
    compaction: TurnCompaction
    models: ModelCaller
    clock: Clock

    async def ask(self, turn: Turn, step: StepState) -> None:
        """Calls the model until it gives an answer that the step can use.

        A request that the provider rejects as too long is repeated with a smaller window; one that it rejects in
        words that are not known, once if it is nearly as long as the window. A model that does not
        answer is replaced by its fallback for the rest of the turn. If an answer does not have the required format,
        the model is called again.

        Raises:
            ProviderError: the model did not answer.
            ContextWindowOverflow, SystemPromptOverflow: the request does not fit, with every compaction.
        """
        context, state = turn.context, turn.state
        calls, refusals, budget = 1, 0, AttemptBudget()
        refused: tuple[Assembled, ProviderRefused] | None = None
        while True:
            try:
                assembled = await self._build_request(turn, step)
            except (ContextWindowOverflow, SystemPromptOverflow):
                if refused is None or isinstance(refused[1], ContextOverflow):
                    raise
                raise refused[1] from None  # its length was a guess
            if refused is not None and refusals == 1 and assembled.request == refused[0].request:
                raise refused[1]  # nothing could be removed
            step.record = new_step(context, state, step.id, self.clock.now())
            try:
                found = await self.models.call(
                    context,
                    state,
                    step.record,
                    assembled,
                    budget,
                    start_attempt=step.start_attempt,
                    on_first_event=lambda: state.mark_first_token(self.clock.monotonic() - context.started),
                    spend=step.spend,
                )
            except FALLBACK_ERRORS as error:
                fallback = state.model.fallback
                if fallback is None:
                    raise
                _log.warning("fallback_model_used", model=fallback.info.handle, error=error.message)
                state.use_fallback(fallback.info.handle)
                refusals, refused, budget = 0, None, AttemptBudget()
                continue
            except ProviderRefused as error:
                is_overflow = isinstance(error, ContextOverflow)
                if refusals == MAX_COMPACTIONS or not (
                    is_overflow or (refused is None and self._may_be_too_long(turn, error))
                ):
                    raise
                refusals, refused = refusals + 1, (assembled, error)
                state.tokens = self.budget.refuse(context, state, error)
                continue
            state.tokens = self.budget.learn(context, state, found.answer.usage.prompt_tokens)
            problem = format_problem(context, found.answer)
            if problem is None:
                step.record = found.record
                step.accept(replace(found.answer, usage=step.spent), found.planned, is_journalled=False)
                return
            _log.warning("answer_format_invalid", attempt=calls, problem=problem)
            if calls == MAX_FORMAT_CALLS:
                raise ProviderBadAnswer(
                    f"The model's answer is not in the agent's response format: {problem}.",
                    provider=state.model.info.provider,
                )
            step.notes = (f"Your answer was not shown to the user: {problem}. Answer again, with JSON alone.",)
            calls += 1

    def _may_be_too_long(self, turn: Turn, error: ProviderRefused) -> bool:
        """Returns whether a request may have been refused for its length, in words that are not known."""
        is_general = type(error) is ProviderRefused and error.status in _GENERAL_REFUSALS
        return is_general and self.budget.is_near_limit(turn.context, turn.state)

    async def _build_request(self, turn: Turn, step: StepState) -> Assembled:
        """Assembles the request of a step, and compacts the window until the request fits the model's window.

        Raises:
            ContextWindowOverflow, SystemPromptOverflow: the request does not fit, with every compaction.
        """
        context, state = turn.context, turn.state
        for attempt in range(MAX_COMPACTIONS + 1):
            assembled = await self.requests.assemble(context, state, step.notes)
            measured = self.budget.measure(context, assembled.request)
            state.tokens = replace(state.tokens, estimate=measured.estimate)
            fits = measured.total <= limit(state)
            if fits and (attempt or self.budget.is_within_trigger(context, state, measured)):
                return assembled
            require_space(state, measured, state.model.longest_prompt)
            if attempt == MAX_COMPACTIONS or not await self.compaction.before_request(
                turn, step, assembled, least_gain(state, fits=fits)
            ):
                break
        if fits:
            return assembled
        return replace(assembled, request=self.budget.clip_returns(context, state, assembled.request, measured))


@dataclass(frozen=True, eq=False)
class Engine:
    """Runs the steps of a turn. An error that it raises ends the run; committed steps stay."""

    context: ContextReader
    budget: ContextBudget
    compaction: TurnCompaction
    answers: StepAnswers
    tools: ToolExecution
    committer: StepCommitter
    retry: RetryPolicy
    clock: Clock
    budgets: BudgetStore

    async def run(self, turn: Turn) -> StopReason:
        """Runs steps until the turn stops.

        Raises:
            ProviderError: the model did not answer. The step leaves its record and its trace.
            ContextWindowOverflow, SystemPromptOverflow: the next request does not fit, with every compaction.
            RuleFault: a rule prefills an argument that the tool does not take.
            BudgetExceeded: a budget of the organization or the agent is used up.
        """
        context, state = turn.context, turn.state
        if context.journal.entries:
            await self.compaction.finish(turn)
        resumption = context.run.resumes
        try:
            verdict = await (self._run_step(turn) if resumption is None else self._resume(turn, resumption))
            while verdict.stop is None:
                state.core = await self._read_core_memory(turn)
                if state.has_opened_files:
                    state.has_opened_files = False
                    state.directories = (await self.context.directories(context.agent))[0] or state.directories
                await self._complete_tools(turn)
                verdict = await self._run_step(turn)
        except LeaseLost:
            raise
        except Exception as error:
            reason, run_error = failure(error)
            self._conclude_open_step(turn, reason, StepStatus.FAILED, run_error)
            raise
        if verdict.fault is not None:
            raise RuleFault(verdict.fault.removeprefix("Error: "))
        return verdict.stop

    async def _run_step(self, turn: Turn) -> Verdict:
        context, state = turn.context, turn.state
        state.step_number += 1
        step = state.open_step = self._new_step(turn, step_id(context.run.id, state.step_number))
        committed = committed_messages(turn, step.id)
        entry = context.journal.entry(step.id, EntryKind.ANSWER)
        if entry is not None:
            self._restore_answer(turn, step, entry)
        elif committed:
            return self._conclude_committed(turn, step, committed)
        else:
            await self._require_budget(turn)
            await self.answers.ask(turn, step)
            await self._await_called_tools(turn, step)
            context = turn.context
        message = step.given.message
        if context.policy.requires_tool_call and not message.tool_calls:
            error = STOP_ERRORS[StopReason.NO_TOOL_CALL]
            self._conclude(turn, step, StopReason.NO_TOOL_CALL, StepStatus.FAILED, error)
            return Verdict(StopReason.NO_TOOL_CALL)
        if message.tool_calls and not step.is_journalled:
            await self._journal_answer(turn, step)
        if step.has_gated_calls:
            return await self._pause(turn, step, is_committed=bool(committed))
        results = await self._run_tools(turn, step, committed)
        return await self._commit_and_decide(turn, step, results, is_committed=bool(committed))

    async def _require_budget(self, turn: Turn) -> None:
        """Raises BudgetExceeded if a budget of the turn is used up, with the steps so far."""
        journal = turn.context.journal
        if journal.payer is not None:
            await journal.store_steps()
            await self.budgets.require(journal.payer)

    async def _read_core_memory(self, turn: Turn) -> CoreMemory:
        """Returns core memory after a step. An edit as its last call has returned it, if no one else has changed it."""
        context, state = turn.context, turn.state
        agent_id, holder_id = context.agent.id, context.conversation.holder_id
        edited, state.edited = state.edited, None
        if edited is not None:
            return self.context.remember_memory(edited, holder_id)
        return await self.retry.call(lambda: self.context.core_memory(agent_id, holder_id))

    async def _complete_tools(self, turn: Turn) -> None:
        """Adds the stored tools to a turn that began without them, if the tools service answers again."""
        if turn.context.toolbox.completed is not None:
            custom, note = await self.context.custom_tools(stored_tool_ids(turn.context.agent))
            if not note:
                turn.complete_tools(custom, note_of(CUSTOM_TOOLS))

    async def _await_called_tools(self, turn: Turn, step: StepState) -> None:
        """Waits for the tools service if the answer calls a stored tool of the agent that the turn began without."""
        agent, toolbox = turn.context.agent, turn.context.toolbox
        called = (agent.tool(call.name) for call in step.given.message.tool_calls if toolbox.schema(call.name) is None)
        if toolbox.completed is None or not any(tool is not None and tool.tool_id is not None for tool in called):
            return
        custom = await self.retry.call(lambda: self.context.read_tools(agent))
        turn.complete_tools(custom, note_of(CUSTOM_TOOLS))
        planned = plan_calls(step.given.message, turn.context.toolbox, turn.state.solver)
        gated = tuple(item.ordinal for item in planned if item.gated)
        step.accept(replace(step.given, gated=gated), planned, is_journalled=False)

    async def _journal_answer(self, turn: Turn, step: StepState) -> None:
        entry = JournalEntry(step.id, EntryKind.ANSWER, self.clock.now(), answer=step.given)
        events = answer_events(step.given.message, step.planned, turn.context.run.config)
        await turn.context.journal.record(entry, events)
        step.is_journalled = True

    async def _run_tools(self, turn: Turn, step: StepState, committed: Sequence[Message]) -> tuple[CallResult, ...]:
        if not step.planned:
            return ()
        context, state = turn.context, turn.state
        state.starts_runs |= starts_runs(step.planned)
        results, state.solver = await self.tools.run(context, state, step.id, step.planned, step.seen, committed)
        state.edited = step.seen.memory if step.seen is not None else None
        return results

    async def _commit_and_decide(
        self, turn: Turn, step: StepState, results: Sequence[CallResult], *, is_committed: bool
    ) -> Verdict:
        """Commits a step whose tools have run, and decides whether the turn continues."""
        context, state = turn.context, turn.state
        verdict = self._decide(turn, step, results)
        is_due = self.budget.is_due(context, state, step, verdict.stop)
        # A summary after the last step has no reader, unless the client follows compactions in the run's events.
        compacts_later = is_due and verdict.stop is not None and not shows_compactions(context.run.config)
        compacts_now = is_due and not compacts_later
        if not step.is_journalled and (compacts_now or verdict.stop is not StopReason.END_TURN):
            await self._journal_answer(turn, step)
        messages = step_messages(context, step, results, verdict)
        if messages and not is_committed:
            await self._commit(turn, step, messages)
        context.journal.publish_held()
        state.pending, state.compacts_after_run = (), compacts_later
        self._conclude(turn, step, verdict.stop)
        if compacts_now:
            await self.compaction.after_step(turn, step)
        return verdict

    def _decide(self, turn: Turn, step: StepState, results: Sequence[CallResult]) -> Verdict:
        context, state = turn.context, turn.state
        state.has_opened_files |= any(item.has_run and item.returned.name == OPEN_FILES for item in results)
        for item in results:
            if item.planned.is_rules_fault:
                return Verdict(StopReason.INVALID_TOOL_CALL, fault=item.planned.problem)
        return context.policy.decide(
            StepOutcome(
                calls=tuple(item.outcome for item in results if item.ended_by is None),
                length_cut=step.given.length_cut,
                filtered=step.given.filtered,
                last=state.step_number >= context.run.config.max_steps,
                solver=state.solver,
                available=context.toolbox.names,
            )
        )

    async def _commit(self, turn: Turn, step: StepState, messages: tuple[Message, ...]) -> None:
        """Commits messages. The events of an answer that is not journalled are published after the commit."""
        context, state = turn.context, turn.state
        state.open_commit = OpenCommit(step, messages)
        state.window = await self.committer.commit(context, state.window, step, messages)
        state.open_commit = None
        if not step.is_journalled:
            context.journal.publish_committed(
                step.id, answer_events(step.given.message, step.planned, context.run.config)
            )

    def _conclude(
        self,
        turn: Turn,
        step: StepState,
        stop: StopReason | None,
        status: StepStatus = StepStatus.SUCCESS,
        error: RunError | None = None,
    ) -> None:
        usage = step.answer.usage if step.answer is not None else step.spent
        turn.state.conclude(step.id, usage)
        turn.context.journal.add_step(concluded(step.record, usage, stop, self.clock.now(), status, error))

    def _conclude_open_step(
        self, turn: Turn, stop: StopReason, status: StepStatus, error: RunError | None = None
    ) -> None:
        """Concludes the step that an error or a cancellation ended, if the model was called for it."""
        step = turn.state.open_step
        if step is not None and (step.attempts or step.answer is not None):
            if step.answer is None:
                model_ms = round((self.clock.now() - step.record.created_at).total_seconds() * 1e3)
                step.record = replace(step.record, attempts=step.attempts, model_ms=model_ms)
            self._conclude(turn, step, stop, status, error)

    def _new_step(self, turn: Turn, id_: str) -> StepState:
        return StepState(new_step(turn.context, turn.state, id_, self.clock.now()))

    def _restore_answer(self, turn: Turn, step: StepState, entry: JournalEntry) -> None:
        context, state, answer = turn.context, turn.state, entry.answer
        if answer is None:
            raise Internal("a journalled answer has no payload")
        state.use_fallback(answer.message.model)
        step.record = replace(
            new_step(context, state, step.id, self.clock.now()),
            created_at=entry.at,
            attempts=answer.attempts,
            model_ms=answer.model_ms,
        )
        planned = plan_calls(answer.message, context.toolbox, state.solver)
        step.accept(answer, with_gates(planned, answer.gated), is_journalled=True)

    def _conclude_committed(self, turn: Turn, step: StepState, committed: Sequence[Message]) -> Verdict:
        """Concludes a step that was committed before a restart without a journal: plain text that ended the turn."""
        context, state = turn.context, turn.state
        state.use_fallback(next((message.model for message in committed if message.model), None))
        step.record = new_step(context, state, step.id, self.clock.now())
        state.pending = ()
        message = next((message for message in committed if message.id == answer_id(step.id)), None)
        if message is not None:
            context.journal.publish_committed(step.id, answer_events(message, (), context.run.config))
        answer = JournalledAnswer(message or committed[-1], (), Usage(), state.window.version, None)
        step.accept(answer, (), is_journalled=False)
        self._conclude(turn, step, StopReason.END_TURN)
        return Verdict(StopReason.END_TURN)

    async def _pause(self, turn: Turn, step: StepState, *, is_committed: bool) -> Verdict:
        """Commits an answer whose calls wait for a decision, with the request for the decision."""
        context, state = turn.context, turn.state
        verdict = Verdict(StopReason.REQUIRES_APPROVAL)
        messages = (*step_messages(context, step, (), verdict), step_commit.request_message(context.run, step))
        if not is_committed:
            await self._commit(turn, step, messages)
        state.pending = ()
        state.approval = step_commit.approval(context, state.solver, step, messages[-2], self.clock.now())
        self._conclude(turn, step, verdict.stop)
        return verdict

    async def _resume(self, turn: Turn, resumption: Resumption) -> Verdict:
        """Runs the calls that waited for a decision, and commits their returns before the model is called."""
        context, state = turn.context, turn.state
        if resumption.withdrawn:
            await self.cancel(turn)
            return Verdict(StopReason.CANCELLED)
        asked = resumption.asked
        answer = step_commit.answer_message(context.run, resumption)
        if context.journal.entry(asked.step_id, EntryKind.DECISION) is None:
            entry = JournalEntry(asked.step_id, EntryKind.DECISION, self.clock.now())
            await context.journal.record(entry, [approval_response_event(answer)])
        state.solver = replace(state.solver, history=asked.history, last_result=asked.last_result)
        step = self._new_step(turn, step_id(context.run.id, 0))
        step.accept(step_commit.resumed_answer(resumption, state.window.version), asked.calls, is_journalled=True)
        state.starts_runs |= starts_runs(asked.calls)
        results, state.solver = await self.tools.run(context, state, asked.step_id, asked.calls, step.seen)
        verdict = self._decide(turn, step, results)
        if answer.id not in {message.id for message in state.window.messages}:
            returns = messages_after_calls(context, asked.step_id, results, verdict, asked.message.created_at)
            await self._commit(turn, step, (replace(answer, step_id=asked.step_id), *returns))
        return Verdict() if state.pending and verdict.fault is None else verdict

    async def cancel(self, turn: Turn, *, keeps_input: bool = True) -> None:
        """Leaves a valid history: commits journalled answers with a return for every call, closes open requests.

        A commit that was interrupted is repeated, because its outcome is not known. With `keeps_input`, an input that
        no step has committed enters the window.
        """
        context, state = turn.context, turn.state
        if (interrupted := state.open_commit) is not None:
            await self._commit(turn, interrupted.step, interrupted.messages)
            if interrupted.step.record.number:
                self._conclude(turn, interrupted.step, StopReason.CANCELLED)
        else:
            await context.journal.store_held()
            await context.journal.reload()
            # The journal of a resumed run may hold steps that this process had not reached.
            state.step_number = max(state.step_number, 1)
            while entry := context.journal.entry(step_id(context.run.id, state.step_number), EntryKind.ANSWER):
                step = self._new_step(turn, entry.step_id)
                self._restore_answer(turn, step, entry)
                if committed := committed_messages(turn, step.id):
                    hold_committed(context, step.id, step.planned, committed)
                    context.journal.publish_held()
                else:
                    await self._commit(turn, step, cancelled_step_messages(context, step, entry))
                    self._conclude(turn, step, StopReason.CANCELLED, StepStatus.CANCELLED)
                state.step_number += 1
        self._conclude_open_step(turn, StopReason.CANCELLED, StepStatus.CANCELLED)
        # Calls that wait are closed before the input: a return directly follows its call.
        if (closing := closing_step(context, state, self.clock.now())) is not None:
            await self._commit(turn, *closing)
        if keeps_input:
            if (unsaid := input_step(context, state, self.clock.now())) is not None:
                await self._commit(turn, *unsaid)
            state.pending = ()
