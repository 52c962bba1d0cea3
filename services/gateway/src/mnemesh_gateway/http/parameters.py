"""The treatment of each parameter of OpenAI's APIs. docs/gateway.md shows the same tables."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from mnemesh_gateway.errors import InvalidRequest, UnsupportedParameter

PASSED: Final = (
    *("seed", "stop", "frequency_penalty", "presence_penalty", "logit_bias", "top_k", "min_p", "repetition_penalty"),
    *("service_tier", "verbosity"),
)
"""The parameters that are passed on to a provider whose API has them."""

_USED: Final = frozenset(
    {
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "reasoning_effort", "response_format"),
        *("user", "safety_identifier", "metadata", "tool_results", "store", *PASSED),
    }
)
"""The parameters that the conversion of a request reads."""

Neutral = Callable[[Any], bool]


def _is(*values: Any) -> Neutral:
    return lambda value: any(value == allowed and type(value) is type(allowed) for allowed in values)


def _zero(value: Any) -> bool:
    return value == 0 and not isinstance(value, bool)


def _any(_: Any) -> bool:
    return True


def _none(_: Any) -> bool:
    return False


_REFUSED: Final[Mapping[str, tuple[Neutral, str]]] = {
    "n": (_is(1), "An agent gives one answer; use 1."),
    "modalities": (_is(["text"], []), "Agents answer with text."),
    "audio": (_none, "Agents answer with text."),
    "functions": (_is([]), "Use tools."),
    "function_call": (_is("none", "auto"), "Use tool_choice."),
}
"""The parameters without which an answer would be another one than the client asks for: the values that change nothing,
and the advice. Other values are refused."""

_IGNORED: Final[Mapping[str, tuple[Neutral, str]]] = {
    "logprobs": (_is(False), "The probabilities of tokens are not stored."),
    "top_logprobs": (_zero, "The probabilities of tokens are not stored."),
    "prediction": (_none, "Send the text as a message."),
    "web_search_options": (_none, "Give the agent a tool that searches."),
    "moderation": (_none, "Moderate the messages before they are sent."),
    "prompt_cache_key": (_any, ""),
    "prompt_cache_options": (_any, ""),
    "prompt_cache_retention": (_any, ""),
}
"""The parameters that are ignored: the values of which nothing is said, and the advice of the strict form."""

PARAMETERS: Final = _USED | _REFUSED.keys() | _IGNORED.keys()

_RESPONSES_USED: Final = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "conversation", "stream", "tools", "tool_choice"),
        *("parallel_tool_calls", "temperature", "top_p", "max_output_tokens", "reasoning", "text"),
        *("user", "safety_identifier", "metadata", "store", *PASSED),
    }
)
_RESPONSES_REFUSED: Final[Mapping[str, tuple[Neutral, str]]] = {
    "background": (_is(False), "A turn continues after a disconnect; send the request again for its answer."),
    "image": (_none, "Agents answer with text."),
    "prompt": (_none, "Use instructions."),
}
_RESPONSES_IGNORED: Final[Mapping[str, tuple[Neutral, str]]] = {
    **{
        name: _IGNORED[name]
        for name in ("moderation", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "top_logprobs")
    },
    "access_programs": (_none, "The gateway has no such programs."),
    "context_management": (_is([]), "An agent compacts its context window itself."),
    "include": (_is([], ["reasoning.encrypted_content"]), "The mesh keeps what an agent's model needs."),
    "max_tool_calls": (_none, "Use a tool rule of the agent."),
    "stream_options": (_any, ""),
    "truncation": (_any, ""),
}

RESPONSES_PARAMETERS: Final = _RESPONSES_USED | _RESPONSES_REFUSED.keys() | _RESPONSES_IGNORED.keys()


EMBEDDINGS_PARAMETERS: Final = frozenset({"model", "input", "encoding_format", "dimensions", "user"})


def ignored_parameters(body: Mapping[str, Any], *, strict: bool) -> tuple[str, ...]:
    """Returns the parameters of a chat request that are ignored; see `_checked`."""
    return _checked(body, _USED, _REFUSED, _IGNORED, strict=strict)


def ignored_responses_parameters(body: Mapping[str, Any], *, strict: bool) -> tuple[str, ...]:
    """Returns the parameters of a request of the Responses API that are ignored; see `_checked`."""
    return _checked(body, _RESPONSES_USED, _RESPONSES_REFUSED, _RESPONSES_IGNORED, strict=strict)


def require_known_embeddings_parameters(body: Mapping[str, Any]) -> None:
    """Checks the parameters of a request of vectors; see `_checked`."""
    _checked(body, EMBEDDINGS_PARAMETERS, {}, {}, strict=True)


def _checked(
    body: Mapping[str, Any],
    used: Collection[str],
    refused: Mapping[str, tuple[Neutral, str]],
    ignored: Mapping[str, tuple[Neutral, str]],
    *,
    strict: bool,
) -> tuple[str, ...]:
    """Returns the parameters of a request that ask for something and are ignored. null asks for nothing.

    Raises:
        UnsupportedParameter: One asks for something that agents cannot do and that a client would miss; if `strict`,
            for anything that is ignored.
        InvalidRequest: One is unknown, if `strict`.
    """
    found = []
    for name, value in body.items():
        if name in used or value is None:
            continue
        is_neutral, advice = refused.get(name) or ignored.get(name) or (_none, "")
        if is_neutral(value):
            continue
        if name in refused or (strict and name in ignored):
            raise UnsupportedParameter(name, advice)
        if strict:
            raise InvalidRequest(f"Unknown parameter: '{name[:100]}'.", name[:100], "unknown_parameter")
        found.append(name)
    return tuple(found)
