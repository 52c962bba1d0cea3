"""The HTTP client under the SDKs: aiohttp, no redirects, answers of bounded size, and addresses that are allowed.

aiohttp parses HTTP in C, which takes half the CPU time of the SDKs' default client. Calls of models are sent to the
transport directly, because the client's layers for redirects, cookies and authentication would take as much CPU as
aiohttp. This module is imported with an SDK, not before.
"""

import errno
import math
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import aiohttp
import httpx2
from aiohttp.http_exceptions import HttpProcessingError, TransferEncodingError
from httpx_aiohttp.httpx2 import AiohttpTransport, Httpx2AiohttpClient
from httpx_aiohttp.httpx2.transport import AiohttpResponseStream
from mnemesh_kit.network import failure_of_connection, is_private_address, may_use_proxy, reason_of_failure, refusal
from mnemesh_kit.public_resolver import PublicResolver

from mnemesh_orchestrator.llm.errors import (
    ProviderBadAnswer,
    ProviderError,
    ProviderTimeout,
    ProviderUnavailable,
    ProviderUnreachable,
    quote,
)
from mnemesh_orchestrator.llm.port import CallLimits
from mnemesh_orchestrator.llm.settings import SETTING_OF_HOSTS, ProviderSettings

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

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of one answer, after decompression."""
MAX_CONNECTIONS: Final = 1000
_PIECE_BYTES: Final = 256 * 1024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32


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


@dataclass(frozen=True, slots=True)
class Target:
    """A URL to which requests are posted, with their headers."""

    request: httpx2.Request
    """A request without a body, for errors."""
    url: str
    headers: dict[str, str]
    transport: "ProviderTransport"
    """The transport for the URL: a direct one, or that of a proxy."""


def open_http_client(settings: ProviderSettings, limits: CallLimits) -> "ProviderHttpClient":
    """Returns the HTTP client of a provider.

    The proxies of the environment are used, except for this machine and names without a domain. A registered provider
    that is limited to public addresses is called directly, because a proxy would resolve the name itself.
    """
    is_restricted = settings.is_registered and limits.public_addresses_only
    transport = _PublicTransport(client=partial(_public_session, MAX_CONNECTIONS)) if is_restricted else None
    return ProviderHttpClient(settings.name, limits, transport)


class ProviderHttpClient(Httpx2AiohttpClient):
    """The HTTP client of an SDK, with a direct way for calls of models."""

    def __init__(self, provider: str, limits: CallLimits, transport: "ProviderTransport | None") -> None:
        self._provider = provider
        self._call_timeout = aiohttp.ClientTimeout(
            total=limits.total_seconds,
            connect=limits.idle_seconds,
            sock_connect=limits.connect_seconds,
            sock_read=limits.idle_seconds,
            ceil_threshold=math.inf,  # aiohttp would round long limits up to seconds.
        )
        super().__init__(
            timeout=httpx2.Timeout(limits.idle_seconds, connect=limits.connect_seconds),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
            follow_redirects=False,  # A redirect would send the key and the window to another host.
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [self._bound_answer]},
            transport=transport,
        )

    def target(self, url: str, headers: httpx2.Headers, query: Any) -> Target:
        with as_provider_errors(self._provider):
            request = self.build_request("POST", url, headers=headers, params=query)
        del request.headers["Content-Length"]
        transport = cast("ProviderTransport", self._transport_for_url(request.url))
        return Target(request, str(request.url), dict(request.headers.items()), transport)

    async def post_stream(self, target: Target, body: bytes) -> httpx2.Response:
        """Posts a body. The body of the answer is still to be read, within the limits of a call."""
        with as_provider_errors(self._provider):
            response = await target.transport.post_stream(target, body, self._call_timeout)
        try:
            await self._bound_answer(response)
        except ProviderBadAnswer:
            await response.aclose()
            raise
        return response

    def _transport_for_url(self, url: httpx2.URL) -> Any:
        return super()._transport_for_url(url) if may_use_proxy(str(url)) else self._transport

    # The base class calls these two with keywords only: once, and once for each proxy of the environment.
    def _init_transport(self, *, transport: Any = None, **options: Any) -> Any:  # type: ignore[override]
        return transport or ProviderTransport(**options)

    def _init_proxy_transport(self, proxy: httpx2.Proxy, **options: Any) -> Any:  # type: ignore[override]
        return ProviderTransport(proxy=proxy, **options)

    async def _bound_answer(self, response: httpx2.Response) -> None:
        encoding, provider = response.headers.pop("content-encoding", "identity").strip().lower(), self._provider
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            message = f"{provider} answered with the unknown encoding {encoding[:40]!r}."
            raise ProviderBadAnswer(message, provider=provider)
        stream = cast("httpx2.AsyncByteStream", response.stream)
        response.stream = _BoundedStream(provider, stream, is_compressed=encoding not in ("", "identity"))


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of at most MAX_ANSWER_BYTES. It decompresses in small pieces, so that no piece is large either."""

    def __init__(self, provider: str, stream: httpx2.AsyncByteStream, *, is_compressed: bool) -> None:
        self._provider = provider
        self._stream = stream
        self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None
        self._received = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with as_provider_errors(self._provider):
            async for raw in self._stream:
                for piece in self._plain(raw) if self._decompressor is not None else (raw,):
                    yield self._counted(piece)
        if self._decompressor is not None and self._received and not self._decompressor.eof:
            message = f"{self._provider} broke off in the middle of a compressed answer."
            raise ProviderUnavailable(message, provider=self._provider)

    def _plain(self, raw: bytes) -> Iterator[bytes]:
        """Yields the decompressed pieces of a body, which may consist of several compressed members."""
        rest = raw
        while rest and self._decompressor is not None:
            if self._decompressor.eof:
                self._decompressor = zlib.decompressobj(_GZIP_OR_ZLIB)
            yield self._decompress(self._decompressor, rest)
            tail = self._decompressor.unused_data
            rest = self._decompressor.unconsumed_tail or (tail if tail.startswith(_GZIP_MAGIC) else b"")

    def _decompress(self, decompressor: "zlib._Decompress", data: bytes) -> bytes:
        try:
            return decompressor.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise ProviderBadAnswer(
                f"{self._provider} answered with damaged compression: {error}.", provider=self._provider
            ) from error

    def _counted(self, piece: bytes) -> bytes:
        self._received += len(piece)
        if self._received > MAX_ANSWER_BYTES:
            raise ProviderBadAnswer(
                f"{self._provider} answered with more than {MAX_ANSWER_BYTES >> 20} MB.", provider=self._provider
            )
        return piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class ProviderTransport(AiohttpTransport):
    """The transport of an SDK's client, with a direct way for requests to models."""

    async def post_stream(self, target: Target, body: bytes, limits: aiohttp.ClientTimeout) -> httpx2.Response:
        """Posts a body. The body of the answer is still to be read."""
        if not isinstance(self.client, aiohttp.ClientSession):
            self.client = self.get_client()
        response = await self.client.post(
            target.url,
            data=body,
            headers=target.headers,
            allow_redirects=False,
            auto_decompress=False,
            timeout=limits,
            **self._proxy_options(),
        )
        return httpx2.Response(
            response.status,
            headers=response.raw_headers,
            stream=AiohttpResponseStream(response),
            request=target.request,
            extensions={"http_version": b"HTTP/1.1"},
        )

    def _proxy_options(self) -> dict[str, Any]:
        proxy = self.proxy
        if proxy is None:
            return {}
        # aiohttp deprecates this class, but sends other credentials to proxies of TLS connections only.
        credentials = aiohttp.BasicAuth(*proxy.auth) if proxy.auth else None
        return {"proxy": str(proxy.url), "proxy_auth": credentials, "proxy_headers": proxy.headers}


class _PublicTransport(ProviderTransport):
    """A transport that refuses an address in the URL itself, which is not resolved."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        _require_public(request)
        return await super().handle_async_request(request)

    async def post_stream(self, target: Target, body: bytes, limits: aiohttp.ClientTimeout) -> httpx2.Response:
        _require_public(target.request)
        return await super().post_stream(target, body, limits)


def _require_public(request: httpx2.Request) -> None:
    if is_private_address(request.url.host):
        problem = PermissionError(errno.EACCES, refusal(request.url.host, SETTING_OF_HOSTS))
        raise httpx2.ConnectError(str(problem), request=request) from problem


def _public_session(max_connections: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=max_connections,
        resolver=PublicResolver(SETTING_OF_HOSTS),
        ssl=httpx2.create_ssl_context(),
        use_dns_cache=True,
    )
    return aiohttp.ClientSession(connector=connector)
