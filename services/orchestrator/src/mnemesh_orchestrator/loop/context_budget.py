"""The token budget of requests: measures them, compares them with the model's window, learns from real counts."""

from dataclasses import replace
from typing import Final

import structlog
from mnemesh_types.messages import Message

from mnemesh_orchestrator.compaction.compactor import MIN_GAIN
from mnemesh_orchestrator.compaction.modes import trigger_ratio, trigger_tokens
from mnemesh_orchestrator.compaction.planner import turn_start
from mnemesh_orchestrator.compaction.tokens import Measured, TokenEstimator
from mnemesh_orchestrator.errors import ContextWindowOverflow, SystemPromptOverflow
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.loop.state import StepState, TokenCounts, TurnContext, TurnState
from mnemesh_orchestrator.model.approvals import open_request
from mnemesh_orchestrator.model.compaction import CompactionSettings
from mnemesh_orchestrator.model.runs import StopReason

_log = structlog.get_logger("mnemesh.loop")

MAX_COMPACTIONS: Final = 3
"""Compactions of the window for one request, and for requests that the provider refuses."""
SHORT_RETURN: Final = 600
"""The characters that remain of a return of the current turn if the turn alone does not fit."""
_SHARE_AFTER_REFUSAL: Final = 0.75
"""The share of a refused request that the next request may take."""
_NEAR_SHARE: Final = 0.7
"""The share of the window from which on a refusal without a known cause may be one for the length."""
_LEAST_GAIN_SHARE: Final = 0.01
"""The least gain of a compaction, as a share of the limit, if the request would also fit without it."""
_KEPT_CORRECTIONS: Final = 8
"""The number of models of one agent whose corrections are stored: those that it used last."""


class ContextBudget:
    """Decides whether a turn's requests fit the window of its model."""

    def __init__(self, estimator: TokenEstimator) -> None:
        self._estimator = estimator

    def measure(self, context: TurnContext, request: LlmRequest) -> Measured:
        """Returns the estimated tokens of a request."""
        return self._estimator.request(context.agent, request)

    def is_within_trigger(self, context: TurnContext, state: TurnState, measured: Measured) -> bool:
        """Returns whether a request fits and does not ask for a compaction before it is sent."""
        fits = measured.total <= limit(state)
        return fits and (context.policy.compacts_late or measured.total < trigger(context, state))

    def is_due(self, context: TurnContext, state: TurnState, step: StepState, stop: StopReason | None) -> bool:
        """Returns whether a compaction follows this step, by the tokens that the provider counted.

        The answer is journalled first in that case, so that the compaction also takes place after a crash.
        """
        # The usage of a step whose model was called more than once is a sum.
        reported = state.tokens.reported or step.given.usage.prompt_tokens
        if reported is None or reported < trigger(context, state) or (stop is None and context.policy.compacts_late):
            return False
        entries = context.journal.entries.values()
        return not any(
            entry.compaction is not None and entry.compaction.after_step
            for entry in entries
            if entry.step_id == step.id
        )

    def learn(self, context: TurnContext, state: TurnState, reported: int | None) -> TokenCounts:
        """Returns the counts after the provider reported the tokens of the request that was measured last."""
        return self._learn(context, state, replace(state.tokens, reported=reported), reported)

    def _learn(self, context: TurnContext, state: TurnState, tokens: TokenCounts, counted: int | None) -> TokenCounts:
        agent, handle = context.agent, state.model.info.handle
        correction = self._estimator.update_correction(agent, handle, tokens.estimate, counted)
        if correction is None:
            return tokens
        known = {item.model: item for item in tokens.corrections or agent.corrections}
        known.pop(handle, None)
        return replace(tokens, corrections=(*known.values(), correction)[-_KEPT_CORRECTIONS:])

    def is_near_limit(self, context: TurnContext, state: TurnState) -> bool:
        """Returns whether the request that was measured last takes most of the model's window."""
        corrected = self._estimator.corrected(context.agent, state.model.info.handle, state.tokens.estimate)
        return corrected >= _NEAR_SHARE * state.model.prompt_limit

    def refuse(self, context: TurnContext, state: TurnState, error: ProviderRefused) -> TokenCounts:
        """Returns the counts after the provider refused a request as too long. The next requests stay well below it."""
        counts, share = state.tokens, _SHARE_AFTER_REFUSAL
        counted, allowed = (_number(error, name) for name in ("tokens", "limit"))
        if counted and allowed:
            counts = self._learn(context, state, counts, counted)
            share = min(share, 0.9 * allowed / counted)
        corrected = self._estimator.corrected(context.agent, state.model.info.handle, counts.estimate)
        counts = replace(counts, ceiling=int(corrected * share))
        _log.warning("request_refused_as_too_long", run_id=context.run.id, next_limit=counts.ceiling)
        return counts

    def clip_returns(
        self, context: TurnContext, state: TurnState, request: LlmRequest, measured: Measured
    ) -> LlmRequest:
        """Returns the request with returns of the current turn cut short: the oldest first, as many as necessary.

        Raises:
            ContextWindowOverflow: the request does not fit with short returns either.
        """
        messages, total, most = list(request.messages), measured.total, limit(state)
        for index in range(start_of_turn(context, state), len(state.window.messages)):
            if total <= most:
                break
            messages[index] = _with_short_returns(messages[index])
            clipped = self._estimator.messages(context.agent, state.model.info.handle, messages[index : index + 1])
            total += clipped[0] - measured.messages[index]
        # A request above the ceiling alone is sent: the provider that refused one may accept it now.
        if total > state.model.longest_prompt:
            raise _overflow(total, state.model.longest_prompt)
        return replace(request, messages=tuple(messages))


def limit(state: TurnState) -> int:
    """Returns the tokens that the next request may take."""
    ceiling, most = state.tokens.ceiling, state.model.prompt_limit
    return most if ceiling is None else min(most, ceiling)


def trigger(context: TurnContext, state: TurnState, settings: CompactionSettings | None = None) -> int:
    """Returns the tokens from which on a compaction starts: the settings' share of the limit."""
    return trigger_tokens(trigger_ratio(settings or context.agent.compaction_settings), limit(state))


def least_gain(state: TurnState, *, fits: bool) -> int | None:
    """Returns the tokens that a compaction before a request has to remove; None if any gain will do."""
    if state.tokens.ceiling is not None:
        return None
    return gain_worth_it(state) if fits else MIN_GAIN


def gain_worth_it(state: TurnState) -> int:
    """Returns the tokens that a compaction has to remove if the request fits without it."""
    return int(state.model.prompt_limit * _LEAST_GAIN_SHARE)


def start_of_turn(context: TurnContext, state: TurnState) -> int:
    """Returns the index of the first message in the window that belongs to the current turn."""
    runs, messages = {context.run.id, *context.run.retried_run_ids}, state.window.messages
    if context.run.resumes is not None and (asking := context.run.resumes.asked.message.run_id) is not None:
        runs.add(asking)  # the answer to an approval belongs to the turn that requested it
    if (waiting := open_request(messages)) is not None and waiting.caller.run_id is not None:
        runs.add(waiting.caller.run_id)
    return turn_start(messages, runs)


def require_space(state: TurnState, measured: Measured, most: int) -> None:
    """Refuses a request that no compaction can shorten to `most` tokens.

    Raises:
        SystemPromptOverflow: the system message and the tools alone do not fit.
        ContextWindowOverflow: they do not fit with the input.
    """
    count = len(state.window.messages)
    fixed = measured.tools + measured.messages[0]
    if fixed > most:
        raise SystemPromptOverflow(
            f"The system prompt and tools take about {fixed} tokens; the model's window leaves {most}.",
            tokens=str(fixed),
            limit=str(most),
        )
    least = fixed + sum(measured.messages[count:])
    if least > most:
        raise _overflow(least, most)


def _overflow(tokens: int, most: int) -> ContextWindowOverflow:
    return ContextWindowOverflow(
        f"The next request would take about {tokens} tokens; the model's window leaves {most}, and nothing more can "
        "be taken away. Send less at once, or give the agent a larger context_window.",
        tokens=str(tokens),
        limit=str(most),
    )


def _with_short_returns(message: Message) -> Message:
    returns = tuple(
        item.with_text(f"{item.text[:SHORT_RETURN]}… [{left} more characters are left out of this request]")
        if (left := len(item.text) - SHORT_RETURN) > 0
        else item
        for item in message.tool_returns
    )
    return replace(message, tool_returns=returns) if returns else message


def _number(error: ProviderRefused, name: str) -> int:
    text = error.metadata.get(name, "")
    return int(text) if text.isdigit() else 0
