"""The treatment of each parameter of OpenAI's APIs. docs/gateway.md shows the same tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter

_USED: Final = frozenset(
    {
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "reasoning_effort", "response_format"),
        *("user", "safety_identifier", "metadata", "tool_results", "store"),
    }
)
"""The parameters that the conversion of a request reads."""

Neutral = Callable[[Any], bool]


def _is(*values: Any) -> Neutral:
    return lambda value: any(value == allowed and type(value) is type(allowed) for allowed in values)


def _zero(value: Any) -> bool:
    return value == 0 and not isinstance(value, bool)


_REFUSED: Final[Mapping[str, tuple[Neutral, str]]] = {
    "n": (_is(1), "An agent gives one answer; use 1."),
    "stop": (_is("", []), "An agent's answer is stored as it is, so it cannot be cut."),
    "seed": (lambda _: False, "An agent's memory changes with each turn, so its answers cannot be reproduced."),
    "logprobs": (_is(False), "The probabilities of tokens are not stored."),
    "top_logprobs": (_zero, "The probabilities of tokens are not stored."),
    "logit_bias": (_is({}), "Set it in the agent's model settings (provider_options)."),
    "presence_penalty": (_zero, "Set it in the agent's model settings (provider_options)."),
    "frequency_penalty": (_zero, "Set it in the agent's model settings (provider_options)."),
    "modalities": (_is(["text"]), "Agents answer with text."),
    "audio": (lambda _: False, "Agents answer with text."),
    "prediction": (lambda _: False, "Send the text as a message."),
    "service_tier": (_is("auto", "default"), "Set it in the agent's model settings (provider_options)."),
    "verbosity": (_is("medium"), "Set it in the agent's model settings (provider_options)."),
    "web_search_options": (lambda _: False, "Give the agent a tool that searches."),
    "functions": (_is([]), "Use tools."),
    "function_call": (_is("none", "auto"), "Use tool_choice."),
    "moderation": (lambda _: False, "Moderate the messages before they are sent."),
    "prompt_cache_key": (lambda _: True, ""),
    "prompt_cache_options": (lambda _: True, ""),
    "prompt_cache_retention": (lambda _: True, ""),
}
"""The parameters that are refused: the values that change nothing and are therefore accepted, and the advice."""

PARAMETERS: Final = _USED | _REFUSED.keys()

_RESPONSES_USED: Final = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "conversation", "stream", "tools", "tool_choice"),
        *("parallel_tool_calls", "temperature", "top_p", "max_output_tokens", "reasoning", "text"),
        *("user", "safety_identifier", "metadata", "store"),
    }
)
_NEUTRAL: Final = (lambda _: True, "")
_RESPONSES_REFUSED: Final[Mapping[str, tuple[Neutral, str]]] = {
    **{
        name: _REFUSED[name]
        for name in (
            *("moderation", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier"),
            "top_logprobs",
        )
    },
    "access_programs": (lambda _: False, "The gateway has no such programs."),
    "background": (_is(False), "A turn continues after a disconnect; send the request again for its answer."),
    "context_management": (_is([]), "An agent compacts its context window itself."),
    "image": (lambda _: False, "Agents answer with text."),
    "include": (_is([], ["reasoning.encrypted_content"]), "The mesh keeps what an agent's model needs."),
    "max_tool_calls": (lambda _: False, "Use a tool rule of the agent."),
    "prompt": (lambda _: False, "Use instructions."),
    "stream_options": _NEUTRAL,
    "truncation": _NEUTRAL,
}

RESPONSES_PARAMETERS: Final = _RESPONSES_USED | _RESPONSES_REFUSED.keys()


EMBEDDINGS_PARAMETERS: Final = frozenset({"model", "input", "encoding_format", "dimensions", "user"})


def require_known_parameters(body: Mapping[str, Any]) -> None:
    """Checks the parameters of a chat request; see `_require`."""
    _require(body, _USED, _REFUSED)


def require_known_responses_parameters(body: Mapping[str, Any]) -> None:
    """Checks the parameters of a request of the Responses API; see `_require`."""
    _require(body, _RESPONSES_USED, _RESPONSES_REFUSED)


def require_known_embeddings_parameters(body: Mapping[str, Any]) -> None:
    """Checks the parameters of a request of vectors; see `_require`."""
    _require(body, EMBEDDINGS_PARAMETERS, {})


def _require(body: Mapping[str, Any], used: Collection[str], refused: Mapping[str, tuple[Neutral, str]]) -> None:
    """Checks the parameters that a request has but that the gateway does not use; null is always accepted.

    Raises:
        UnsupportedParameter: One asks for something that agents cannot do.
        InvalidRequest: One is unknown.
    """
    for name, value in body.items():
        if name in used or value is None:
            continue
        known = refused.get(name)
        if known is None:
            raise InvalidRequest(f"Unknown parameter: '{name[:100]}'.", name[:100], "unknown_parameter")
        is_neutral, advice = known
        if not is_neutral(value):
            raise UnsupportedParameter(name, advice)
