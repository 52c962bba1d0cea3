"""The stop reasons of runs: one for each failure, and the error texts of reasons that are no exception."""

from typing import Final

from mnemesh_kit.errors import MnemeshError, typed_error

from mnemesh_orchestrator.errors import ContextWindowOverflow, RuleFault, SystemPromptOverflow, ToolsMissing
from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderBadAnswer,
    ProviderContentFilter,
    ProviderError,
    ProviderPaymentRequired,
)
from mnemesh_orchestrator.model.runs import RunError, StopReason

_STOPS: tuple[tuple[type[MnemeshError], StopReason], ...] = (
    (SystemPromptOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW_IN_SYSTEM_PROMPT),
    (ContextWindowOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW),
    (RuleFault, StopReason.INVALID_TOOL_CALL),
    (ContextOverflow, StopReason.CONTEXT_WINDOW_OVERFLOW),
    (ProviderBadAnswer, StopReason.INVALID_LLM_RESPONSE),
    (ProviderContentFilter, StopReason.CONTENT_FILTER),
    (ToolsMissing, StopReason.NO_TOOL_CALL),
    (ProviderPaymentRequired, StopReason.INSUFFICIENT_CREDITS),
    (ProviderError, StopReason.LLM_API_ERROR),
)
STOP_ERRORS: Final = {
    StopReason.NO_TOOL_CALL: RunError(
        "PROVIDER_BAD_ANSWER", "The model called no tool; agents of this type act by tools only."
    ),
    StopReason.CONTENT_FILTER: RunError(
        "PROVIDER_CONTENT_FILTER", "The provider's content filter cut the answer off. The text before it is kept."
    ),
    StopReason.MAX_TOKENS_EXCEEDED: RunError(
        "PROVIDER_BAD_ANSWER", "The answer was cut at the model's output limit; raise max_output_tokens."
    ),
}
"""The errors of turns that stop without an exception and fail."""


def failure(error: Exception) -> tuple[StopReason, RunError]:
    """Returns the stop reason of a turn that an exception ended, and the error that clients see."""
    known = typed_error(error)
    stop = next((reason for kind, reason in _STOPS if isinstance(known, kind)), StopReason.ERROR)
    return stop, RunError(known.reason, known.message, dict(known.metadata))
