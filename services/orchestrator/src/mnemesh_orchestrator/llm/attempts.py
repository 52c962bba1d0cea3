"""Time limits and repeated attempts of calls to providers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.backoff import Backoff

from mnemesh_orchestrator.llm.errors import ProviderError
from mnemesh_orchestrator.llm.port import LlmEvent

Sleep = Callable[[float], Awaitable[None]]

SHORT_SECONDS = 10.0
"""The limits of a question that needs no model, such as a list of models."""
PROVIDER_BACKOFF: Final = Backoff(first=0.5, maximum=8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """The limits of one call to a provider."""

    public_addresses_only: bool = False
    """True if an organization's own provider must have a public address. The operator's may have any."""
    connect_seconds: float = 10.0
    """Seconds to open a connection."""
    idle_seconds: float = 180.0
    """Seconds between two pieces of an answer, and before the first."""
    total_seconds: float = 900.0
    """Seconds of one attempt, from the first byte sent to the last byte read."""
    attempts: int = 5
    """The maximum number of requests for one answer."""
    retry_budget_seconds: float = 60.0
    """Seconds of all waits between attempts. A longer Retry-After fails at once, with its value in the error."""


DEFAULT_LIMITS = CallLimits()


async def with_retries(
    attempt_call: Callable[[], AsyncIterator[LlmEvent]],
    limits: CallLimits,
    sleep: Sleep = asyncio.sleep,
    secrets: tuple[str, ...] = (),
) -> AsyncIterator[LlmEvent]:
    """Yields the events of the first attempt that starts to answer.

    A rate limit, an overload or a broken connection is retried after the provider's Retry-After, or with exponential
    back-off and jitter. After the first event an error is final, because the consumer has seen a part of the answer. No
    error quotes any of the secrets.
    """
    waited = 0.0
    for attempt in range(1, limits.attempts + 1):
        has_begun = False
        try:
            async with aclosing(attempt_call()) as events:  # type: ignore[type-var]
                async for event in events:
                    has_begun = True
                    yield event
            return
        except ProviderError as error:
            error.redact(secrets)
            wait = _wait(error, attempt)
            is_final = has_begun or not error.is_retryable or attempt == limits.attempts
            if is_final or waited + wait > limits.retry_budget_seconds:
                raise
        waited += wait
        await sleep(wait)


def _wait(error: ProviderError, attempt: int) -> float:
    if error.retry_after is not None:
        return error.retry_after
    return PROVIDER_BACKOFF.delay(attempt)
