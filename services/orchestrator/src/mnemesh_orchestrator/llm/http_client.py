"""The HTTP client under the SDKs: aiohttp, no redirects, answers of bounded size, and addresses that are allowed.

aiohttp parses HTTP in C, which takes half the CPU time of the SDKs' default client. This module is imported with an
SDK, not before.
"""

import zlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Final, cast

import aiohttp
import httpx2
from httpx_aiohttp.httpx2 import AiohttpTransport, Httpx2AiohttpClient
from mnemesh_kit.public_resolver import PublicResolver, is_private_address, refusal

from mnemesh_orchestrator.llm.attempts import CallLimits
from mnemesh_orchestrator.llm.errors import ProviderBadAnswer
from mnemesh_orchestrator.llm.settings import ProviderSettings

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of one answer, after decompression."""
MAX_CONNECTIONS: Final = 1000
_SETTING: Final = "MNEMESH_PROVIDER_HOSTS"
_PIECE_BYTES: Final = 256 * 1024
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32


def open_http_client(settings: ProviderSettings, limits: CallLimits) -> httpx2.AsyncClient:
    """Returns the HTTP client of a provider.

    The proxies of the environment are used. A registered provider that is limited to public addresses is called
    directly, because a proxy would resolve the name itself.
    """
    is_restricted = settings.is_registered and limits.public_addresses_only
    transport = _PublicTransport(client=partial(_public_session, MAX_CONNECTIONS)) if is_restricted else None
    return Httpx2AiohttpClient(
        timeout=httpx2.Timeout(limits.idle_seconds, connect=limits.connect_seconds),
        limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
        follow_redirects=False,  # A redirect would send the key and the window to another host.
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [partial(_bound_answer, settings.name)]},
        transport=transport,
    )


async def _bound_answer(provider: str, response: httpx2.Response) -> None:
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise ProviderBadAnswer(f"{provider} answered with the unknown encoding {encoding[:40]!r}.", provider=provider)
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
        decompressor = self._decompressor
        async for raw in self._stream:
            if decompressor is None:
                yield self._counted(raw)
                continue
            rest = raw
            while rest and not decompressor.eof:
                yield self._counted(self._decompress(decompressor, rest))
                rest = decompressor.unconsumed_tail

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


class _PublicTransport(AiohttpTransport):
    """A transport that refuses an address in the URL itself, which is not resolved."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if is_private_address(request.url.host):
            raise httpx2.ConnectError(refusal(request.url.host, _SETTING))
        return await super().handle_async_request(request)


def _public_session(max_connections: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=max_connections, resolver=PublicResolver(_SETTING), ssl=httpx2.create_ssl_context(), use_dns_cache=True
    )
    return aiohttp.ClientSession(connector=connector)
