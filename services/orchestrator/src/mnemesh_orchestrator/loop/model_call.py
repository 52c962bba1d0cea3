"""The call of a model for a step's answer."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import structlog
from mnemesh_kit.time import Clock
from mnemesh_kit.unicode import well_formed
from mnemesh_types.messages import TextPart
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.llm.calls import failed_response, model_events, rendered
from mnemesh_orchestrator.llm.errors import (
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderError,
    ProviderUnavailable,
    quote,
)
from mnemesh_orchestrator.llm.port import (
    MAX_INTERRUPTED_ANSWERS,
    MAX_UNUSABLE_ANSWERS,
    AttemptBudget,
    FinishReason,
    LlmAnswer,
    LlmRequest,
)
from mnemesh_orchestrator.llm.provider import cost_of
from mnemesh_orchestrator.llm.schemas import is_structured, text_problem
from mnemesh_orchestrator.loop.request_assembly import MAX_COMPACTIONS, Assembled
from mnemesh_orchestrator.loop.rules import plan_calls
from mnemesh_orchestrator.loop.services import TurnMetrics
from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.loop.step_messages import DeltaStream, answer_id, answer_message, call_id
from mnemesh_orchestrator.model.conversations import PlannedCall
from mnemesh_orchestrator.model.events import JournalledAnswer, StepStarted
from mnemesh_orchestrator.model.runs import RunPool, Step

_log = structlog.get_logger("mnemesh.loop")

MAX_FORMAT_CALLS: Final = 3
"""Calls of the model for one step, if no answer has the agent's response format."""
MAX_CALLS_PER_HOLDER: Final = 2 * (MAX_INTERRUPTED_ANSWERS + MAX_UNUSABLE_ANSWERS + MAX_FORMAT_CALLS + MAX_COMPACTIONS)
"""The most calls of one lease holder for one step, including the fallback; the next holder counts from there."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """An answer that a step can use, with the plan of its calls and the record of the step."""

    answer: JournalledAnswer
    planned: tuple[PlannedCall, ...]
    record: Step


@dataclass(frozen=True, eq=False)
class ModelCaller:
    """Sends one request to the model of a turn. Sends it again if the answer breaks off or cannot be used."""

    clock: Clock
    metrics: TurnMetrics

    async def call(
        self,
        context: TurnContext,
        state: TurnState,
        record: Step,
        assembled: Assembled,
        budget: AttemptBudget,
        *,
        start_attempt: Callable[[], int],
        on_first_event: Callable[[], None],
        spend: Callable[[Usage], None],
    ) -> ModelAnswer:
        """Returns the model's answer. Its deltas are published as they arrive, and its trace is kept.

        Args:
            record: the step's record as it begins.
            assembled: the request.
            budget: the requests that the step may still send to the model.
            start_attempt: counts an attempt of the step, and returns its number.
            on_first_event: is called once per attempt, when the model's first event has arrived.
            spend: counts the tokens of an attempt, also of one that failed.

        Raises:
            ProviderBadAnswer: the answer is empty or cannot be read, twice.
            ContextOverflow: the provider refuses the request as too long.
            ProviderError: the model did not answer.
        """
        began = self.clock.monotonic()
        while True:
            attempt = start_attempt()
            # Numbers continue after a takeover: followers replace the deltas of lower attempts by those of higher ones.
            number = attempt + MAX_CALLS_PER_HOLDER * context.claims
            context.journal.publish_live(record.id, StepStarted(record.number, number))
            sent = self.clock.monotonic()
            try:
                answer = await self._stream(context, state, record.id, assembled.request, budget, on_first_event)
            except BaseException as error:
                usage = _priced(error.usage if isinstance(error, ProviderError) else Usage(), state)
                self.metrics.model_called(state.model.info, self.clock.monotonic() - sent, usage, error)
                spend(usage)
                request = rendered(state.model.client, assembled.request)
                context.journal.add_trace(record.id, request, failed_response(error), self._ms_since(began))
                # The adapter has repeated requests without an event itself, so that here an answer has begun.
                if not isinstance(error, ProviderError) or not budget.may_repeat(error, has_begun=True):
                    raise
                is_unusable = isinstance(error, ProviderBadAnswer)
                _log.warning(
                    "answer_unusable" if is_unusable else "answer_interrupted", attempt=attempt, error=str(error)
                )
                continue
            self.metrics.model_called(state.model.info, self.clock.monotonic() - sent, answer.usage)
            spend(answer.usage)
            model_ms = self._ms_since(began)
            record = replace(record, attempts=attempt, model_ms=model_ms)
            context.journal.add_trace(record.id, answer.request_body, answer.response_body, model_ms)
            try:
                given, planned = self._accept(context, state, record, assembled, answer)
            except ProviderBadAnswer as error:
                if not budget.may_repeat(error):
                    raise
                _log.warning("answer_unusable", attempt=attempt, error=error.message)
                continue
            return ModelAnswer(given, planned, record)

    def _ms_since(self, began: float) -> int:
        return round((self.clock.monotonic() - began) * 1e3)

    def _accept(
        self, context: TurnContext, state: TurnState, record: Step, assembled: Assembled, answer: LlmAnswer
    ) -> tuple[JournalledAnswer, tuple[PlannedCall, ...]]:
        is_filtered = answer.finish_reason is FinishReason.CONTENT_FILTER
        if is_filtered:
            answer = _filtered(context, state, answer)
        message = answer_message(
            context.run,
            record.id,
            state.model.info.handle,
            answer,
            self.clock.now(),
            text_is_reasoning=context.policy.requires_tool_call,
        )
        is_cut = answer.finish_reason is FinishReason.LENGTH
        if not (is_cut or _says_something(answer) or _may_be_silent(context, state)):
            raise _silent(state.model.info.provider, answer)
        planned = plan_calls(message, context.toolbox, state.solver) if message.tool_calls else ()
        given = JournalledAnswer(
            message=message,
            leading=state.pending,
            usage=answer.usage,
            base_version=state.window.version,
            system_text=assembled.system_text if context.run.config.override_system is None else None,
            length_cut=is_cut,
            attempts=record.attempts,
            model_ms=record.model_ms or 0,
            seen={block.label: block.revision for block in state.core.blocks} if message.tool_calls else None,
            gated=tuple(item.ordinal for item in planned if item.gated),
            filtered=is_filtered,
        )
        return given, planned

    async def _stream(
        self,
        context: TurnContext,
        state: TurnState,
        step_id: str,
        request: LlmRequest,
        budget: AttemptBudget,
        on_first_event: Callable[[], None],
    ) -> LlmAnswer:
        deltas = _delta_stream(context, state, step_id, request) if context.run.config.stream_tokens else None
        answer: LlmAnswer | None = None
        is_first = True
        try:
            events = model_events(state.model.client, request, budget)
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    if is_first:
                        on_first_event()
                    if deltas is not None:
                        deltas.take(event)
                        if is_first:
                            await asyncio.sleep(0)  # sends the first words before the rest of the answer is read
                    is_first = False
                    if isinstance(event, LlmAnswer):
                        answer = event
        finally:
            if deltas is not None:
                deltas.flush()
        if answer is None:
            raise ProviderUnavailable("The model's answer broke off.", provider=state.model.info.provider)
        return replace(answer, usage=_priced(answer.usage, state))


def _priced(usage: Usage, state: TurnState) -> Usage:
    """Returns the tokens of a call with their cost, if the price of the model is known."""
    return replace(usage, cost_nano_usd=cost_of(usage, state.model.info.price))


def _says_something(answer: LlmAnswer) -> bool:
    """Returns whether an answer has text or a tool call. Reasoning is for the model alone."""
    words = any(isinstance(part, TextPart) and part.text.strip() for part in answer.content)
    return words or bool(answer.tool_calls)


def _may_be_silent(context: TurnContext, state: TurnState) -> bool:
    """Returns whether a turn may end without words: tools have run, and no one reads them or was told already."""
    if state.pending or context.policy.requires_tool_call:
        return False
    return context.run.pool is RunPool.SLEEPTIME or context.run.config.assistant_tool_name in state.solver.history


def _silent(provider: str, answer: LlmAnswer) -> ProviderBadAnswer:
    """Returns the error for an answer without text and tool calls."""
    form = "reasoning_only" if answer.content else "empty"
    text = "has reasoning, but no text and no tool call" if answer.content else "was empty"
    word = quote(well_formed(answer.finish_word or ""))[:100]
    ending = f" It ended with the reason {word!r}." if word else ""
    metadata = {"finish_reason": word} if word else {}
    message = f"The model's answer {text}.{ending}"
    error = ProviderBadAnswer(message, provider=provider)
    error.metadata.update({"answer": form, **metadata})
    return error


def _filtered(context: TurnContext, state: TurnState, answer: LlmAnswer) -> LlmAnswer:
    """Returns the text of an answer that the provider's content filter cut off. Its tool calls may be incomplete.

    Raises:
        ProviderContentFilter: no text for the user is left.
    """
    words = any(isinstance(part, TextPart) and part.text for part in answer.content)
    if context.policy.requires_tool_call or not words:
        provider = state.model.info.provider
        raise ProviderContentFilter("The provider's content filter withheld the model's answer.", provider=provider)
    return replace(answer, tool_calls=())


def format_problem(context: TurnContext, answer: JournalledAnswer) -> str | None:
    """Returns why words that end a turn do not have the required response format; None if they have, or need not."""
    required, message = context.response_format, answer.message
    if required is None or not is_structured(required) or context.policy.requires_tool_call or message.tool_calls:
        return None
    is_whole = message.content and not (answer.length_cut or answer.filtered)
    return text_problem(message.text, required) if is_whole else None


def _delta_stream(context: TurnContext, state: TurnState, step_id: str, request: LlmRequest) -> DeltaStream:
    config, toolbox = context.run.config, context.toolbox
    # A call that rules forbid now is refused, so it does not wait for a decision.
    gated = toolbox.gated & {schema.name for schema in request.tools}
    return DeltaStream(
        answer_id(step_id),
        lambda ordinal: call_id(step_id, ordinal),
        lambda delta: context.journal.publish_live(step_id, delta),
        (config.assistant_tool_name, config.assistant_tool_argument)
        if config.assistant_messages and config.assistant_tool_name not in toolbox.gated
        else None,
        text_is_reasoning=context.policy.requires_tool_call,
        thinks_in_arguments=bool(state.model.settings.inner_thoughts_in_kwargs),
        gated=gated,
        several=request.parallel_tool_calls,
    )
