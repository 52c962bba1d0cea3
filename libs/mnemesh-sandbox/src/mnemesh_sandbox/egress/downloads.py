"""Downloads by URL, as a service makes them for someone it does not trust.

The rules of egress hold at every hop; bytes, time, redirects and the expansion of compressed bodies are bounded.
"""

import asyncio
import ipaddress
import socket
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from mnemesh_sandbox.egress.policy import (
    EgressPolicy,
    EgressRefused,
    NetworkConnection,
    Refusal,
    Resolve,
    Target,
    require_allowed,
    target_of,
)

if TYPE_CHECKING:
    import aiohttp  # it is loaded with the first download

_CHUNK: Final = 65_536
# The header of the zlib format, or of gzip.
_ANY_WINDOW: Final = zlib.MAX_WBITS | 32


class Inflate:
    """Decompresses a body in pieces of bounded size, so that a small body cannot become a large one at once."""

    def __init__(self, encoding: str) -> None:
        """Starts with no data.

        Args:
            encoding: The value of the header Content-Encoding, "gzip" or "deflate".
        """
        self._encoding = encoding
        self._inflate = zlib.decompressobj(_ANY_WINDOW)
        self._has_begun = False

    @property
    def is_complete(self) -> bool:
        """Whether the compressed data has ended, or has not begun."""
        return self._inflate.eof or not self._has_begun

    def pieces(self, raw: bytes) -> Iterator[bytes]:
        """Yields what the next bytes of the body contain. Raises zlib.error."""
        if not self._has_begun:
            self._has_begun = True
            if self._encoding == "deflate" and raw[0] & 0x0F != zlib.DEFLATED:
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without a header, which servers send, too
        piece = b"first"
        while piece and not self._inflate.eof:
            piece = self._inflate.decompress(raw, _CHUNK)
            raw = self._inflate.unconsumed_tail
            if piece:
                yield piece


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SUCCESS: Final = range(200, 300)
_PLAIN: Final = ("", "identity")
_COMPRESSED: Final = ("gzip", "x-gzip", "deflate")


Hop = tuple["aiohttp.ClientResponse", NetworkConnection]


class Problem(Enum):
    """Why a download failed."""

    REFUSED = "refused"
    """The rules of egress do not allow the URL, or one to which it redirects."""
    UNREACHABLE = "unreachable"
    """The server cannot be reached, or broke the connection off."""
    STATUS = "status"
    """The server answered with an error."""
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    UNREADABLE = "unreadable"
    """The answer is not HTTP, or is compressed in a way that was not asked for."""


class DownloadFailed(Exception):
    """A download failed. The message is for the person who gave the URL."""

    def __init__(self, problem: Problem, text: str, *, url: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.problem = problem
        self.url = url
        """The URL of the hop that failed."""
        self.status = status
        """The HTTP status, if the server answered with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    max_bytes: int = 10 * 1024 * 1024
    """Of the body as it was sent, and as it is after decompression."""
    seconds: float = 30.0
    """For all of it, with its redirects."""
    redirects: int = 5


@dataclass(slots=True)
class Download:
    """The answer of a server, whose body is being received."""

    url: str
    """The last URL, after the redirects."""
    media_type: str
    """In lower case, without parameters; "" if the server names none."""
    charset: str | None
    chunks: AsyncIterator[bytes]
    """The body after decompression. Raises DownloadFailed."""

    async def read(self) -> bytes:
        """Returns the whole body."""
        return b"".join([chunk async for chunk in self.chunks])


class Downloader:
    """Makes downloads under one policy. Each has connections of its own, no cookies, and no proxies."""

    def __init__(self, policy: EgressPolicy, user_agent: str) -> None:
        self._policy = policy
        self._user_agent = user_agent

    @asynccontextmanager
    async def open(
        self,
        url: str,
        resolve: Resolve,
        limits: DownloadLimits = DownloadLimits(),
        *,
        accept: str = "*/*",
        ended: Callable[[NetworkConnection], None] = lambda _: None,
    ) -> AsyncIterator[Download]:
        """Yields the answer to a GET request of a URL. The time of `limits` includes the block.

        Args:
            url: The URL.
            resolve: Resolves names.
            limits: The limits.
            accept: The header Accept.
            ended: Is called with each connection that has ended or was refused.

        Raises:
            DownloadFailed: The URL is refused, the server does not answer as it should, or a limit is exceeded.
        """
        until = asyncio.get_running_loop().time() + limits.seconds
        used: list[str] = []
        async with self._session(resolve, accept, used) as session, AsyncExitStack() as stack:
            with _conversion(url, limits):
                async with asyncio.timeout_at(until):
                    hop = partial(self._hop, session, used, ended)
                    response, connection = await _last(stack, hop, url, limits)
                    download = _answered(response, connection, limits, until)
            yield download

    def _session(self, resolve: Resolve, accept: str, used: list[str]) -> "aiohttp.ClientSession":
        """Returns a session that adds each address that it connects to to `used`."""
        import aiohttp  # noqa: PLC0415

        from mnemesh_sandbox.egress.checked_resolver import CheckedResolver  # noqa: PLC0415

        def new_socket(info: "aiohttp.AddrInfoType") -> socket.socket:
            family, kind, protocol, _, address = info
            used.append(str(address[0]))
            return socket.socket(family, kind, protocol)

        connector = aiohttp.TCPConnector(
            resolver=CheckedResolver(self._policy, resolve),
            use_dns_cache=False,
            force_close=True,
            limit=1,
            socket_factory=new_socket,
        )
        return aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": self._user_agent, "Accept": accept, "Accept-Encoding": "gzip, deflate"},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._policy.connect_seconds),
            auto_decompress=False,
        )

    @asynccontextmanager
    async def _hop(
        self,
        session: "aiohttp.ClientSession",
        used: list[str],
        ended: Callable[[NetworkConnection], None],
        target: Target,
    ) -> AsyncIterator[Hop]:
        import aiohttp  # noqa: PLC0415

        connection, started = NetworkConnection(target.host, target.port), time.monotonic()
        try:
            self._require_allowed_literal(target)
            async with session.get(target.url, allow_redirects=False) as response:
                connection.address = used[-1]
                yield response, connection
        except EgressRefused as refused:
            connection.refusal = refused.refusal
            raise
        except aiohttp.ClientConnectorDNSError:
            connection.refusal = Refusal.UNRESOLVED
            raise
        except (aiohttp.ClientConnectionError, OSError):
            connection.refusal = None if connection.address else Refusal.UNREACHABLE
            raise
        finally:
            connection.seconds = time.monotonic() - started
            ended(connection)

    def _require_allowed_literal(self, target: Target) -> None:
        """Checks an address in the URL itself, which is not resolved."""
        try:
            address = ipaddress.ip_address(target.host)
        except ValueError:
            return
        require_allowed(target.host, address, target.port, self._policy)


async def _last(
    stack: AsyncExitStack, hop: Callable[[Target], AbstractAsyncContextManager[Hop]], url: str, limits: DownloadLimits
) -> Hop:
    """Returns the first answer that is not a redirect, with its connection, which stays open until `stack` closes."""
    target = target_of(url)
    for _ in range(limits.redirects + 1):
        async with AsyncExitStack() as own:
            response, connection = await own.enter_async_context(hop(target))
            link = response.headers.get("Location")
            if response.status not in _REDIRECTS or link is None:
                stack.push_async_exit(own.pop_all())
                return response, connection
            target = target_of(link, target.url)
    raise DownloadFailed(Problem.REFUSED, f"{url} redirects more than {limits.redirects} times.", url=url)


def _answered(
    response: "aiohttp.ClientResponse", connection: NetworkConnection, limits: DownloadLimits, until: float
) -> Download:
    url = str(response.url)
    if response.status not in _SUCCESS:
        text = f"{url} answers with the HTTP status {response.status}."
        raise DownloadFailed(Problem.STATUS, text, url=url, status=response.status)
    if (response.content_length or 0) > limits.max_bytes:
        raise _too_large(url, limits)
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in (*_PLAIN, *_COMPRESSED):
        text = f"{url} is compressed as {encoding[:50]!r}, which was not asked for."
        raise DownloadFailed(Problem.UNREADABLE, text, url=url)
    return Download(
        url=url,
        media_type=response.content_type.lower() if "Content-Type" in response.headers else "",
        charset=response.charset,
        chunks=_chunks(response, connection, limits, until, encoding),
    )


async def _chunks(
    response: "aiohttp.ClientResponse",
    connection: NetworkConnection,
    limits: DownloadLimits,
    until: float,
    encoding: str,
) -> AsyncIterator[bytes]:
    """Yields the body, decompressed. Neither form exceeds the limit."""
    url, decoded = str(response.url), 0
    inflate = Inflate(encoding) if encoding in _COMPRESSED else None
    while raw := await _read(response, limits, until):
        connection.received_bytes += len(raw)
        if connection.received_bytes > limits.max_bytes:
            raise _too_large(url, limits)
        pieces = iter((raw,)) if inflate is None else inflate.pieces(raw)
        while True:
            with _conversion(url, limits):
                chunk = next(pieces, b"")
            if not chunk:
                break
            decoded += len(chunk)
            if decoded > limits.max_bytes:
                raise _too_large(url, limits)
            yield chunk
    if inflate is not None and not inflate.is_complete:
        raise DownloadFailed(Problem.UNREACHABLE, f"{url} ended before it was complete.", url=url)


async def _read(response: "aiohttp.ClientResponse", limits: DownloadLimits, until: float) -> bytes:
    with _conversion(str(response.url), limits):
        async with asyncio.timeout_at(until):
            return await response.content.read(_CHUNK)


def _too_large(url: str, limits: DownloadLimits) -> DownloadFailed:
    text = f"{url} is larger than {limits.max_bytes / 1024 / 1024:g} MB."
    return DownloadFailed(Problem.TOO_LARGE, text, url=url)


@contextmanager
def _conversion(url: str, limits: DownloadLimits) -> Iterator[None]:
    """Raises DownloadFailed for the errors of a connection."""
    import aiohttp  # noqa: PLC0415

    try:
        yield
    except EgressRefused as refused:
        raise DownloadFailed(Problem.REFUSED, str(refused), url=url) from refused
    except TimeoutError as error:
        text = f"{url} did not answer completely within {limits.seconds:g} seconds."
        raise DownloadFailed(Problem.TOO_SLOW, text, url=url) from error
    except zlib.error as error:
        raise DownloadFailed(Problem.UNREADABLE, f"{url} is not compressed as its header says.", url=url) from error
    except aiohttp.ClientConnectorDNSError as error:
        text = f"The name of the server of {url} cannot be resolved."
        raise DownloadFailed(Problem.UNREACHABLE, text, url=url) from error
    except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
        raise DownloadFailed(Problem.UNREACHABLE, f"The server of {url} has no valid certificate.", url=url) from error
    except (aiohttp.ClientResponseError, ValueError) as error:
        raise DownloadFailed(Problem.UNREADABLE, f"{url} does not answer with valid HTTP.", url=url) from error
    except (aiohttp.ClientError, OSError) as error:
        text = f"{url} cannot be reached, or ended before it was complete."
        raise DownloadFailed(Problem.UNREACHABLE, text, url=url) from error
