"""Reads a provider's refusal: from status, headers and body to the one error of the tree that says it.

Pure functions over plain values, so that both adapters and every compatible server share one reading.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from engram_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderAuth,
    ProviderContentFilter,
    ProviderError,
    ProviderPaymentRequired,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnavailable,
)

_LONGEST_QUOTE = 300
_KEYS = re.compile(r"(?i)\b(?:(?:sk|pk|rk|xai|gsk|key|api)[-_][\w*.\-]{6,}|bearer\s+[\w*.\-]{6,}|AIza[\w\-]{20,})")
_MARKUP = re.compile(r"(?i)<(?:!doctype|html|head|body|title|center|h1)\b")

_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "request_too_large", "string_above_max_length"}
)
_OVERFLOW_TEXT = re.compile(
    r"(?i)maximum context length|context[ _-]?(?:length|window|size|limit)|prompt is too long|input is too long"
    r"|too many (?:input |prompt )?tokens|reduce the length of (?:the|your) (?:messages|prompt|input)"
    r"|exceeds? the (?:model's )?(?:maximum|available) (?:input|context|number of tokens)"
)
_PAYMENT_CODES = frozenset({"insufficient_quota", "billing_error", "billing_not_active", "billing_hard_limit_reached"})
_PAYMENT_TEXT = re.compile(
    r"(?i)credit balance is too low|insufficient (?:balance|credits?|quota)|exceeded your current quota"
)
_FILTER_CODES = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_AUTH_CODES = frozenset({"authentication_error", "permission_error", "invalid_api_key", "invalid_authentication"})
_LIMIT_CODES = frozenset({"rate_limit_error", "rate_limit_exceeded", "rate_limited", "tokens", "requests"})
_OVERLOAD_CODES = frozenset(
    {"overloaded_error", "overloaded", "api_error", "server_error", "internal_error", "internal_server_error"}
    | {"timeout_error", "service_unavailable", "engine_overloaded", "model_overloaded"}
)
_ASK_AGAIN_STATUS = frozenset({408, 409, 425})

# "maximum context length is 8192 tokens ... resulted in 9000 tokens",
# "prompt is too long: 210000 tokens > 200000 maximum"
_LIMIT_THEN_TOKENS = re.compile(r"(?i)(?:length|window|limit|size)\D{0,40}?(\d{3,9})(?:\D+?)(\d{3,9})")
_TOKENS_THEN_LIMIT = re.compile(r"(\d{3,9})\s*(?:tokens)?\s*>\s*(\d{3,9})")


@dataclass(frozen=True, slots=True)
class _Stated:
    """What the provider's error body says of itself."""

    words: str
    codes: frozenset[str]


def diagnose(
    provider: str, status: int | None, body: object, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """The error behind a failed answer.

    Args:
        provider: its name, as in a model's handle.
        status: the HTTP status; None for an error inside of a stream that began well.
        body: the decoded body, or its text.
        headers: the answer's headers, for Retry-After.
    """
    stated = _stated(body)
    message = f"{provider} answered {status}" if status is not None else f"{provider} broke off with an error"
    message += f": {stated.words}" if stated.words else "."
    return _for_the_account(provider, status, stated, message) or _for_the_moment(
        provider, status, stated, message, retry_after_seconds(headers or {})
    )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long the provider asks to wait: Retry-After-Ms, or Retry-After in seconds or as a date."""
    for header, divisor in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[header]) / divisor
        except (KeyError, ValueError):
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds()) if moment.tzinfo else None


def quotable(text: str) -> str:
    """A provider's words, fit for a log and a client: one line, short, no keys, no markup."""
    if _MARKUP.search(text):
        return "(a page of HTML)"
    line = " ".join(_KEYS.sub("[key]", text).split())
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 1] + "…"


def _stated(body: object) -> _Stated:
    if isinstance(body, bytes | str):
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        try:
            decoded = json.loads(text)
        except ValueError:
            return _Stated(quotable(text), frozenset())
        return _stated(decoded) if isinstance(decoded, dict) else _Stated(quotable(text), frozenset())
    if not isinstance(body, Mapping):
        return _Stated("", frozenset())
    inner = body.get("error", body)
    if not isinstance(inner, Mapping):
        return _Stated(quotable(str(inner)), frozenset())
    codes = {str(inner[key]).lower() for key in ("code", "type", "status") if inner.get(key) is not None}
    nested = inner.get("innererror")
    if isinstance(nested, Mapping) and nested.get("code") is not None:
        codes.add(str(nested["code"]).lower())
    words = inner.get("message") or inner.get("detail") or inner.get("error") or ""
    return _Stated(quotable(words if isinstance(words, str) else json.dumps(words)), frozenset(codes))


def _for_the_account(provider: str, status: int | None, stated: _Stated, message: str) -> ProviderError | None:
    """What asking again does not change."""
    is_refusal = status in (None, 400, 413, 422, 500)
    if status == 413 or (is_refusal and (stated.codes & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(stated.words))):
        overflow = ContextOverflow(message, provider=provider, status=status)
        overflow.metadata.update(_figures(stated.words))
        return overflow
    if status == 402 or stated.codes & _PAYMENT_CODES or _PAYMENT_TEXT.search(stated.words):
        return ProviderPaymentRequired(message, provider=provider, status=status)
    if stated.codes & _FILTER_CODES:
        return ProviderContentFilter(message, provider=provider, status=status)
    if status in (401, 403) or (status is None and stated.codes & _AUTH_CODES):
        return ProviderAuth(message, provider=provider, status=status)
    return None


def _for_the_moment(
    provider: str, status: int | None, stated: _Stated, message: str, retry_after: float | None
) -> ProviderError:
    if status == 429 or (status is None and stated.codes & _LIMIT_CODES):
        return ProviderRateLimited(message, provider=provider, status=status, retry_after=retry_after)
    if status is None:
        refused = stated.codes & {"invalid_request_error", "not_found_error"} and not stated.codes & _OVERLOAD_CODES
        if refused:
            return ProviderRefused(message, provider=provider)
        return ProviderUnavailable(message, provider=provider)
    if status >= 500 or status in _ASK_AGAIN_STATUS:
        return ProviderUnavailable(message, provider=provider, status=status, retry_after=retry_after)
    return ProviderRefused(message, provider=provider, status=status)


def _figures(words: str) -> dict[str, str]:
    if found := _TOKENS_THEN_LIMIT.search(words):
        return {"tokens": found[1], "limit": found[2]}
    if found := _LIMIT_THEN_TOKENS.search(words):
        return {"limit": found[1], "tokens": found[2]}
    return {}
