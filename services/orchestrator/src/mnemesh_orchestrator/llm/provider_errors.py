"""Converts a provider's refusal (status, headers, body) to an error of the tree.

Pure functions over plain values, so that all adapters and compatible servers share one interpretation.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mnemesh_orchestrator.llm.errors import (
    ContextOverflow,
    ProviderAuth,
    ProviderContentFilter,
    ProviderError,
    ProviderModelUnknown,
    ProviderPaymentRequired,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnavailable,
)

_MAX_QUOTE_CHARACTERS = 300
_KEYS = re.compile(r"(?i)\b(?:(?:sk|pk|rk|xai|gsk|key|api)[-_][\w*.\-]{6,}|bearer\s+[\w*.\-]{6,}|AIza[\w\-]{20,})")
_MARKUP = re.compile(r"(?i)<(?:!doctype|html|head|body|title|center|h1)\b")

# Phrases of servers that have no code for the case. tests/llm/test_provider_errors.py has complete samples by vendor.
_OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "request_too_large", "string_above_max_length"}
    | {"max_tokens_exceeded", "context_window_exceeded", "model_max_prompt_tokens_exceeded", "prompt_too_long"}
)
_OVERFLOW_TEXT = re.compile(
    r"(?i)max(?:imum)? context length|context[ _-]?(?:length|window|size|limit)|prompt (?:is )?too long"
    r"|input is too long|too many (?:input |prompt )?tokens|reduce the length of (?:the|your) (?:messages|prompt|input)"
    r"|exceeds? the (?:model's )?(?:maximum|available) (?:input|context|number of tokens)"
    r"|maximum prompt length|longer than the maximum model length|tokens \+ `?max_(?:new_)?tokens`? must be <="
    r"|input length and `?max_tokens`? exceed"
)
# A request that alone exceeds a minute's tokens: only a shorter one can succeed, whatever the status is.
_TOO_LARGE_FOR_A_MINUTE = re.compile(r"(?i)request too large.{0,200}?tokens per min")
_PAYMENT_CODES = frozenset({"insufficient_quota", "billing_error", "billing_not_active", "billing_hard_limit_reached"})
_PAYMENT_TEXT = re.compile(
    r"(?i)credit balance is too low|insufficient (?:balance|credits?|quota)|exceeded your current quota"
    r"|out of (?:available )?credits|spending limit|requires more credits"
)
_FILTER_CODES = frozenset(
    {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt", "bio_policy"}
    | {"misalignment_policy_violation", "image_content_policy_violation", "prohibited_content"}
)
_FILTER_TEXT = re.compile(r"(?i)content management policy|violat\w+ (?:our |the )?usage polic|input was flagged")
_AUTH_CODES = frozenset({"authentication_error", "permission_error", "invalid_api_key", "invalid_authentication"})
_AUTH_TEXT = re.compile(r"(?i)(?:api key (?:is )?not valid|(?:invalid|incorrect) api key)")
_MODEL_CODES = frozenset({"model_not_found", "deploymentnotfound", "invalid_model", "model_not_available"})
_MODEL_TEXT = re.compile(
    r"(?i)model identifier is invalid|(?:model|deployment)\b.{0,120}?(?:does not exist|not found|is not a valid)"
    r"|(?:no such|unknown|invalid) model\b|^model: "
)
_LIMIT_CODES = frozenset({"rate_limit_error", "rate_limit_exceeded", "rate_limited", "tokens", "requests"})
_OVERLOAD_CODES = frozenset(
    {"overloaded_error", "overloaded", "api_error", "server_error", "internal_error", "internal_server_error"}
    | {"timeout_error", "service_unavailable", "engine_overloaded", "model_overloaded"}
)
_REFUSAL_CODES = frozenset({"invalid_request_error", "not_found_error", "data_residency_mismatch"})
_REFUSED_IMAGE = re.compile(r"(?:invalid|empty|unsupported)_.*image|^image_|^invalid_image|^failed_to_download_image")
# 498 is Groq's status for exhausted capacity.
_RETRY_STATUS = frozenset({408, 409, 425, 498})
_WAIT_TEXT = re.compile(r"(?i)try again in (?:(\d+)m(?!s))?\s*(?:(\d+(?:\.\d+)?)\s*(ms|s))?")

# "maximum context length is 8192 tokens ... resulted in 9000 tokens",
# "prompt is too long: 210000 tokens > 200000 maximum"
_LIMIT_THEN_TOKENS = re.compile(r"(?i)(?:length|window|limit|size)\D{0,40}?(\d{3,9})(?:\D+?)(\d{3,9})")
_TOKENS_THEN_LIMIT = re.compile(r"(\d{3,9})\s*(?:tokens)?\s*>\s*(\d{3,9})")


@dataclass(frozen=True, slots=True)
class _ErrorBody:
    """The contents of a provider's error body."""

    text: str
    codes: frozenset[str]
    retry_after: float | None = None


def error_from_response(
    provider: str, status: int | None, body: object, headers: Mapping[str, str] | None = None
) -> ProviderError:
    """Returns the error for a failed answer.

    Args:
        provider: its name, as in a model's handle.
        status: the HTTP status; None for an error inside a stream that started well.
        body: the decoded body, or its text.
        headers: the headers of the answer, for Retry-After.
    """
    body_error = _parse_body(body)
    message = f"{provider} answered {status}" if status is not None else f"{provider} broke off with an error"
    message += f": {body_error.text}" if body_error.text else "."
    if status is not None and 300 <= status < 400:
        message = f"{provider} answered {status}. Redirects are not followed. Configure the final URL as base_url."
    wait = retry_after_seconds(headers or {})
    return _permanent_error(provider, status, body_error, message) or _temporary_error(
        provider, status, body_error, message, body_error.retry_after if wait is None else wait
    )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Returns the wait that the provider requests: Retry-After-Ms, or Retry-After in seconds or as a date."""
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


def quote(text: str) -> str:
    """Returns a provider's text for logs and clients: one short line, without keys and markup."""
    if _MARKUP.search(text):
        return "(a page of HTML)"
    line = " ".join(_KEYS.sub("[key]", text).split())
    return line if len(line) <= _MAX_QUOTE_CHARACTERS else line[: _MAX_QUOTE_CHARACTERS - 1] + "…"


def _parse_body(body: object) -> _ErrorBody:
    try:
        return _read_body(body)
    except RecursionError:
        return _ErrorBody("an answer that is nested too deeply", frozenset())


def _read_body(body: object) -> _ErrorBody:
    if isinstance(body, bytes | str):
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        try:
            decoded = json.loads(text)
        except ValueError:
            return _ErrorBody(quote(text), frozenset())
        return _read_body(decoded) if isinstance(decoded, dict | list) else _ErrorBody(quote(text), frozenset())
    if isinstance(body, list) and body:  # Google wraps its errors like this.
        return _read_body(body[0])
    if not isinstance(body, Mapping):
        return _ErrorBody("", frozenset())
    inner = body.get("error", body)
    if not isinstance(inner, Mapping):
        return _ErrorBody(quote(str(inner)), frozenset())
    codes = {str(inner[key]).lower() for key in ("code", "type", "status") if inner.get(key) is not None}
    nested = inner.get("innererror")
    if isinstance(nested, Mapping) and nested.get("code") is not None:
        codes.add(str(nested["code"]).lower())
    message = inner.get("message") or inner.get("detail") or inner.get("error") or ""
    text = message if isinstance(message, str) else json.dumps(message)
    return _ErrorBody(quote(text), frozenset(codes), _wait_in_body(inner, text))


def _wait_in_body(error: Mapping[str, object], text: str) -> float | None:
    """Returns the wait in a body: Google's RetryInfo, or "try again in 7.66s" as OpenAI and Groq write."""
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, Mapping) else None
        if isinstance(delay, str) and re.fullmatch(r"\d+(?:\.\d+)?s", delay):
            return float(delay[:-1])
    match = _WAIT_TEXT.search(text)
    if match is None or not (match[1] or match[2]):
        return None
    seconds = float(match[2] or 0) / (1000.0 if match[3] == "ms" else 1.0)
    return 60.0 * int(match[1] or 0) + seconds


def _permanent_error(provider: str, status: int | None, body_error: _ErrorBody, message: str) -> ProviderError | None:
    """Returns the error of a refusal that a retry cannot change."""
    codes, text = body_error.codes, body_error.text
    may_be_overflow = status in (None, 400, 413, 422, 500)
    is_overflow = status == 413 or (may_be_overflow and (codes & _OVERFLOW_CODES or _OVERFLOW_TEXT.search(text)))
    if is_overflow or _TOO_LARGE_FOR_A_MINUTE.search(text):
        overflow = ContextOverflow(message, provider=provider, status=status)
        overflow.metadata.update(_token_counts(text))
        return overflow
    # Google also says this of the tokens per minute.
    is_minute_quota = status == 429 and "resource_exhausted" in codes
    if status == 402 or codes & _PAYMENT_CODES or (_PAYMENT_TEXT.search(text) and not is_minute_quota):
        return ProviderPaymentRequired(message, provider=provider, status=status)
    if codes & _FILTER_CODES or _FILTER_TEXT.search(text):
        return ProviderContentFilter(message, provider=provider, status=status)
    is_refused_key = status == 400 and _AUTH_TEXT.search(text)
    if status in (401, 403) or is_refused_key or (status is None and codes & _AUTH_CODES):
        return ProviderAuth(message, provider=provider, status=status)
    if codes & _MODEL_CODES or (status in (None, 400, 404) and _MODEL_TEXT.search(text)):
        return ProviderModelUnknown(message, provider=provider, status=status)
    return None


def _temporary_error(
    provider: str, status: int | None, body_error: _ErrorBody, message: str, retry_after: float | None
) -> ProviderError:
    if status == 429 or (status is None and body_error.codes & _LIMIT_CODES):
        return ProviderRateLimited(message, provider=provider, status=status, retry_after=retry_after)
    if status is None:
        is_refused_image = any(_REFUSED_IMAGE.search(code) for code in body_error.codes)
        if (body_error.codes & _REFUSAL_CODES and not body_error.codes & _OVERLOAD_CODES) or is_refused_image:
            return ProviderRefused(message, provider=provider)
        return ProviderUnavailable(message, provider=provider)
    if status >= 500 or status in _RETRY_STATUS:
        return ProviderUnavailable(message, provider=provider, status=status, retry_after=retry_after)
    return ProviderRefused(message, provider=provider, status=status)


def _token_counts(text: str) -> dict[str, str]:
    if match := _TOKENS_THEN_LIMIT.search(text):
        return {"tokens": match[1], "limit": match[2]}
    if match := _LIMIT_THEN_TOKENS.search(text):
        return {"limit": match[1], "tokens": match[2]}
    return {}
