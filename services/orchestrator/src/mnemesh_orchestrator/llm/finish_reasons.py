"""The words of providers for the reason why a model stopped."""

from collections.abc import Mapping
from typing import Final

from mnemesh_orchestrator.llm.port import FinishReason

# OpenAI, Anthropic, Gemini, Mistral, Cohere, Together, Bedrock, DeepSeek and Zhipu, whatever their case.
_REASONS: Final[Mapping[str, FinishReason]] = {
    **dict.fromkeys(("tool_calls", "tool_use", "tool_call", "function_call"), FinishReason.TOOL_CALLS),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length", "max_length"), FinishReason.LENGTH),
    "model_context_window_exceeded": FinishReason.LENGTH,
    **dict.fromkeys(("content_filter", "content_filtered", "refusal", "sensitive"), FinishReason.CONTENT_FILTER),
    **dict.fromkeys(("safety", "image_safety", "recitation", "blocklist", "spii"), FinishReason.CONTENT_FILTER),
    **dict.fromkeys(("prohibited_content", "guardrail_intervened", "error_toxic"), FinishReason.CONTENT_FILTER),
}
_INTERRUPTED: Final = frozenset(
    {"error", "network_error", "insufficient_system_resource", "engine_error", "abort", "cancelled", "user_cancel"}
)


def finish_reason_of(word: object) -> FinishReason:
    """Returns the reason for a provider's word. A word that is not known, or None, is STOP."""
    return _REASONS.get(_plain(word), FinishReason.STOP)


def is_interruption(word: object) -> bool:
    """Returns whether a provider's word means that it failed in the middle of its answer."""
    return _plain(word) in _INTERRUPTED


def _plain(word: object) -> str:
    """Returns the general part of a word, such as that of "content_filter: PROHIBITED_CONTENT"."""
    return str(word or "").lower().partition(":")[0].strip()
