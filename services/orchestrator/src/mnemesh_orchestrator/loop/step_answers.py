"""The answer of a step: requests are assembled and sent until the model gives an answer that the step can use."""

from dataclasses import replace
from typing import Final

import structlog
from mnemesh_kit.clock import Clock

from mnemesh_orchestrator.errors import ContextWindowOverflow, SystemPromptOverflow
from mnemesh_orchestrator.llm.attempts import AttemptBudget
from mnemesh_orchestrator.llm.errors import FALLBACK_ERRORS, ContextOverflow, ProviderBadAnswer, ProviderRefused
from mnemesh_orchestrator.loop.context_budget import (
    MAX_COMPACTIONS,
    ContextBudget,
    least_gain,
    limit,
    require_space,
)
from mnemesh_orchestrator.loop.model_call import MAX_FORMAT_CALLS, ModelCaller, format_problem
from mnemesh_orchestrator.loop.request_assembly import Assembled, RequestAssembler
from mnemesh_orchestrator.loop.state import StepState, Turn, new_step
from mnemesh_orchestrator.loop.turn_compaction import TurnCompaction

_log = structlog.get_logger("mnemesh.loop")

_GENERAL_REFUSALS: Final = (None, 400, 422)
"""The statuses of a refused request that do not name the cause."""


class StepAnswers:
    """Asks the model of a turn for the answer of a step."""

    def __init__(
        self,
        requests: RequestAssembler,
        budget: ContextBudget,
        compaction: TurnCompaction,
        models: ModelCaller,
        clock: Clock,
    ) -> None:
        self._requests = requests
        self._budget = budget
        self._compaction = compaction
        self._models = models
        self._clock = clock

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
            step.record = new_step(context, state, step.id, self._clock.now())
            try:
                found = await self._models.call(
                    context,
                    state,
                    step.record,
                    assembled,
                    budget,
                    start_attempt=step.start_attempt,
                    on_first_event=lambda: state.mark_first_token(self._clock.monotonic() - context.started),
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
                state.tokens = self._budget.refuse(context, state, error)
                continue
            state.tokens = self._budget.learn(context, state, found.answer.usage.prompt_tokens)
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
        return is_general and self._budget.is_near_limit(turn.context, turn.state)

    async def _build_request(self, turn: Turn, step: StepState) -> Assembled:
        """Assembles the request of a step, and compacts the window until the request fits the model's window.

        Raises:
            ContextWindowOverflow, SystemPromptOverflow: the request does not fit, with every compaction.
        """
        context, state = turn.context, turn.state
        for attempt in range(MAX_COMPACTIONS + 1):
            assembled = await self._requests.assemble(context, state, step.notes)
            measured = self._budget.measure(context, assembled.request)
            state.tokens = replace(state.tokens, estimate=measured.estimate)
            fits = measured.total <= limit(state)
            if fits and (attempt or self._budget.is_within_trigger(context, state, measured)):
                return assembled
            require_space(state, measured, state.model.longest_prompt)
            if attempt == MAX_COMPACTIONS or not await self._compaction.before_request(
                turn, step, assembled, least_gain(state, fits=fits)
            ):
                break
        if fits:
            return assembled
        return replace(assembled, request=self._budget.clip_returns(context, state, assembled.request, measured))
