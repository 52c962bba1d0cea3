"""Converts what the HTTP client, the HTTP parser and TLS raise to errors of the provider, with their cause.

This module is imported with an SDK, not before.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import aiohttp
import httpx2
from aiohttp.http_exceptions import HttpProcessingError, TransferEncodingError
from mnemesh_kit.connection_failures import failure_of_connection, reason_of_failure

from mnemesh_orchestrator.llm.errors import (
    ProviderBadAnswer,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    ProviderUnreachable,
)
from mnemesh_orchestrator.llm.provider_errors import quote

RAISED: Final = (aiohttp.ClientError, HttpProcessingError, httpx2.HTTPError, httpx2.InvalidURL, OSError, EOFError)
"""The exceptions of a call, beside ValueError: TLS and time limits are subclasses of OSError."""

_CLOSED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError, ConnectionError, EOFError)
_BAD_URL: Final = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, httpx2.InvalidURL, httpx2.UnsupportedProtocol)
_LIMITS: Final = (TimeoutError, httpx2.TimeoutException)
_NO_CONNECTION: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.ProxyError,
)
_TLS_RECORDS: Final = ("\\x15\\x03", "\\x16\\x03")
"""The first bytes of a TLS alert and a TLS handshake, as the HTTP parser quotes them."""


@contextmanager
def as_provider_errors(provider: str) -> Iterator[None]:
    """Converts the exceptions of a call, and of reading its answer.

    Raises:
        ProviderError: the call failed; the exception is its cause.
    """
    try:
        yield
    except (*RAISED, ValueError) as error:
        raise connection_error(provider, error) from error


def connection_error(provider: str, error: BaseException) -> ProviderError:
    """Returns the error for an exception of the HTTP client. The innermost cause that says more decides."""
    chain = tuple(_causes(error))
    for cause in chain:
        if isinstance(cause, ProviderError):
            return cause
    for cause in chain:
        found = _known(provider, cause)
        if found is not None:
            return found
    for cause in chain:
        if isinstance(cause, _NO_CONNECTION):
            return ProviderUnavailable(f"{provider} cannot be reached: {_unreached(chain)}.", provider=provider)
        if isinstance(cause, _LIMITS):
            message = f"{provider} did not answer within the configured time."
            return ProviderTimeout(message, provider=provider)
        if isinstance(cause, RAISED):
            detail = _words(chain[-1])
            message = f"The connection to {provider} broke before the answer's end: {detail}."
            return ProviderUnavailable(message, provider=provider)
    message = f"The request to {provider} cannot be sent: {_words(error)}."
    return ProviderUnreachable(message, provider=provider)


def _known(provider: str, cause: BaseException) -> ProviderError | None:
    """Returns the error of a cause that says what is wrong; None for one that says only that something broke."""
    text, reason = quote(str(cause)), getattr(cause, "reason", None)  # some of aiohttp's subclasses lack it
    if isinstance(cause, _BAD_URL):
        message = f"The base URL of {provider} cannot be used: {text or 'it is not a URL'}."
        return ProviderUnreachable(message, provider=provider)
    if isinstance(cause, ssl.SSLCertVerificationError):
        detail = getattr(cause, "verify_message", "") or text
        message = f"The TLS certificate of {provider} is not valid: {detail}."
        return ProviderUnreachable(message, provider=provider)
    if isinstance(cause, ssl.SSLError) and reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        message = f"{provider} does not use TLS at this address. Does the base URL begin with http://?"
        return ProviderUnreachable(message, provider=provider)
    if isinstance(cause, ssl.SSLError) and reason and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        message = f"The TLS connection to {provider} failed: {reason or text}."
        return ProviderUnavailable(message, provider=provider)
    if isinstance(cause, aiohttp.ClientHttpProxyError):
        message = f"{provider} cannot be reached: the proxy answered {cause.status}."
        return ProviderUnavailable(message, provider=provider)
    if isinstance(cause, TransferEncodingError) and "Not enough data" in cause.message:
        return None
    if isinstance(cause, HttpProcessingError) and type(cause).__name__ != "ContentLengthError":
        said = quote(cause.message.partition("\n\n")[0]).rstrip(" .:")
        if any(record in cause.message for record in _TLS_RECORDS):
            message = f"{provider} uses TLS at this address. Does the base URL begin with https://?"
            return ProviderUnreachable(message, provider=provider)
        return ProviderBadAnswer(f"{provider} returned an answer that is not valid HTTP: {said}.", provider=provider)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception and those that caused it, the outermost first."""
    current: BaseException | None = error
    for _ in range(8):
        if current is None:
            return
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _unreached(chain: tuple[BaseException, ...]) -> str:
    """Returns the address that was not reached, as far as the exceptions know it, and the reason."""
    for cause in chain:
        if isinstance(cause, aiohttp.ClientConnectorError):
            return f"{cause.host}:{cause.port}: {quote(reason_of_failure(cause))}"
    for cause in chain:
        if isinstance(cause, httpx2.RequestError) and cause._request is not None:
            return failure_of_connection(str(cause.request.url), chain[0])
    return reason_of_failure(chain[0])


def _words(cause: BaseException) -> str:
    """Returns what an exception says, without the objects that some of them print."""
    if isinstance(cause, _CLOSED):
        return "the server closed the connection"
    text = cause.message if isinstance(cause, HttpProcessingError) else str(cause)
    return quote(text).rstrip(".") or type(cause).__name__
