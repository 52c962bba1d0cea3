"""ModelCaller the model for a step's answer, until there is one that can be used."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import Internal
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.errors import STAYS_AWAY, ContextOverflow, ProviderBadAnswer, ProviderUnavailable
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmEvent, LlmRequest
from mnemesh_orchestrator.loop import step_messages as answers
from mnemesh_orchestrator.loop.context_budget import MAX_COMPACTIONS, ContextBudget
from mnemesh_orchestrator.loop.context_builder import Assembled
from mnemesh_orchestrator.loop.deltas import DeltaStream
from mnemesh_orchestrator.loop.journal import JournalWriter
from mnemesh_orchestrator.loop.state import Answered, Turn
from mnemesh_orchestrator.loop.step_records import new_step
from mnemesh_orchestrator.model.events import StepStarted
from mnemesh_orchestrator.model.journal import JournalledAnswer
from mnemesh_orchestrator.model.steps import Step

_log = structlog.get_logger("mnemesh.loop")

MAX_INTERRUPTED_CALLS: Final = 3
"""Calls of the model with one request, if each answer is interrupted."""
MAX_FORMAT_CALLS: Final = 3
"""Calls of the model for one step, if no answer has the agent's response format."""
MAX_CALLS_PER_HOLDER: Final = 2 * MAX_INTERRUPTED_CALLS * MAX_FORMAT_CALLS
"""Calls of one lease holder for one step, including the fallback; the next holder counts from there."""


class ModelCaller:
    """Asks models: again where an answer breaks off or has not the form that is wanted, and a fallback in the end."""

    def __init__(self, fitting: ContextBudget, recorder: JournalWriter, clock: Clock) -> None:
        self._fitting = fitting
        self._recorder = recorder
        self._clock = clock

    async def until_fit(self, turn: Turn, step_id: str) -> Answered:
        """Asks until an answer has the form that the agent's answers are to have; the model is told what is wrong.

        Raises:
            ProviderBadAnswer: it never has.
        """
        turn.asked, notes, spent = 0, turn.notes, Usage()
        for attempt in range(1, MAX_FORMAT_CALLS + 1):
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
                if refusals == MAX_COMPACTIONS:
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
        step = new_step(turn, step_id, self._clock.now())
        for attempt in range(1, MAX_INTERRUPTED_CALLS + 1):
            turn.asked += 1
            # After a takeover the numbers go on: what is asked again replaces what was heard before.
            number = turn.asked + MAX_CALLS_PER_HOLDER * turn.progress.claims
            self._recorder.live(turn, step_id, StepStarted(turn.progress.number, number))
            try:
                answer = await self._stream(turn, step_id, assembled.request)
            except ProviderUnavailable as error:
                # With a status the provider said no, and the adapter has asked often enough.
                if attempt == MAX_INTERRUPTED_CALLS or error.status is not None:
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

    async def _stream(self, turn: Turn, step_id: str, request: LlmRequest) -> LlmAnswer:
        show = self._deltas(turn, step_id, request) if turn.run.config.stream_tokens else None
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

    def _deltas(self, turn: Turn, step_id: str, request: LlmRequest) -> DeltaStream:
        config = turn.run.config
        # What rules keep from being called now would be refused, and waits for nobody.
        gated = turn.toolbox.gated & {schema.name for schema in request.tools}
        return DeltaStream(
            answers.answer_id(step_id),
            lambda ordinal: answers.call_id(step_id, ordinal),
            lambda delta: self._recorder.live(turn, step_id, delta),
            (config.assistant_tool_name, config.assistant_tool_argument)
            if config.assistant_messages and config.assistant_tool_name not in turn.toolbox.gated
            else None,
            text_is_reasoning=turn.policy.requires_tool_call,
            thinks_in_arguments=bool(turn.model.settings.inner_thoughts_in_kwargs),
            gated=gated,
            several=request.parallel_tool_calls,
        )


def _may_be_silent(turn: Turn) -> bool:
    """Whether an empty answer is one: models that have done what they were told may end their turn without a word."""
    return not (turn.pending or turn.policy.requires_tool_call)
