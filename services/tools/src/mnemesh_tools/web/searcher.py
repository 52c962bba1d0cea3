"""Asks the configured provider, in bounded time, and repeats what may succeed the next time."""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final

from mnemesh_kit.network import failure_of_connection
from mnemesh_kit.retries import Backoff
from mnemesh_sandbox.redaction import Redactor
from mnemesh_types.tools import SearchAnswer

from mnemesh_tools.errors import WebSearchRefused, WebSearchUnavailable
from mnemesh_tools.model.web import WebSearch
from mnemesh_tools.web.providers import Provider

if TYPE_CHECKING:
    import httpx2  # it is loaded with the first search

ATTEMPTS: Final = 3
BACKOFF: Final = Backoff(first=0.25, maximum=2.0)
SECONDS: Final = 20.0
RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
_AUTHENTICATION: Final = frozenset({401, 403})
_PAYMENT: Final = frozenset({402, 432, 433})
"""432 and 433 are limits of a plan of Tavily."""


class WebSearcher:
    """Searches with one provider. The key is sent in a header only; it is in no error and no repr."""

    def __init__(
        self, provider: Provider, url: str, key: str | None, *, seconds: float = SECONDS, backoff: Backoff = BACKOFF
    ) -> None:
        """Opens no connection yet.

        Args:
            provider: The API.
            url: Its base URL; "" for that of the provider.
            key: The key of the API, if it needs one.
            seconds: The time of a search with all of its attempts.
            backoff: The delays between them.
        """
        self._provider = provider
        self._url = (url or provider.default_url).rstrip("/")
        self._key = key
        self._redactor = Redactor({} if key is None else {"MNEMESH_TOOLS_WEB_SEARCH_KEY": key})
        self._seconds = seconds
        self._backoff = backoff
        self._client: httpx2.AsyncClient | None = None

    async def search(self, search: WebSearch) -> SearchAnswer:
        """Returns the results of a search.

        Raises:
            WebSearchUnavailable: The provider does not answer as it should.
            WebSearchRefused: The provider refuses the key or the request.
        """
        name = self._provider.name
        until = asyncio.get_running_loop().time() + self._seconds
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with asyncio.timeout_at(until):
                    answer = await self._request(search)
            except TimeoutError:
                raise WebSearchUnavailable(name, f"did not answer within {self._seconds:g} seconds") from None
            except _TemporaryError as error:
                delay = max(self._backoff.delay(attempt), error.retry_after)
                if attempt == ATTEMPTS or asyncio.get_running_loop().time() + delay >= until:
                    raise WebSearchUnavailable(name, str(error)) from None
                await asyncio.sleep(delay)
            else:
                return self._read(answer, search)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _request(self, search: WebSearch) -> bytes:
        import httpx2  # noqa: PLC0415

        request = self._provider.request(search)
        if self._client is None:
            headers = {"Accept": "application/json"}
            if self._key and self._provider.key_header:
                headers[self._provider.key_header] = f"{self._provider.key_prefix}{self._key}"
            # Organizations share the connections, but no cookies.
            no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
            self._client = httpx2.AsyncClient(headers=headers, timeout=None, cookies=no_cookies)
        try:
            async with self._client.stream(
                request.method, f"{self._url}{request.path}", params=request.parameters or None, json=request.body
            ) as response:
                content = await self._content(response)
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise _TemporaryError(f"cannot be reached: {failure_of_connection(self._url, error)}") from None
        self._require_success(response, content)
        return content

    async def _content(self, response: "httpx2.Response") -> bytes:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_ANSWER_BYTES:
                name = self._provider.name
                raise WebSearchUnavailable(name, f"answered with more than {MAX_ANSWER_BYTES >> 20} MB")
        return bytes(content)

    def _require_success(self, response: "httpx2.Response", content: bytes) -> None:
        name, status = self._provider.name, response.status_code
        if status == HTTPStatus.OK:
            return
        if status in RETRIED:
            cause = "limits the rate of searches" if status == 429 else f"answered with the status {status}"
            raise _TemporaryError(cause, _seconds(response.headers.get("retry-after")))
        if status in _AUTHENTICATION:
            hint = " A SearXNG server must offer the format json." if name == "searxng" else ""
            text = f"refuses access (status {status}). The operator must check MNEMESH_TOOLS_WEB_SEARCH_KEY.{hint}"
            raise WebSearchRefused(name, status, text)
        if status in _PAYMENT:
            raise WebSearchRefused(name, status, f"requires payment, or its plan is used up (status {status}).")
        raise WebSearchRefused(name, status, f"refuses the request (status {status}){self._said(content)}.")

    def _said(self, content: bytes) -> str:
        """Returns what the provider says about an error, without the key."""
        text = self._redactor.redacted(content[:2_000].decode(errors="replace"), is_cut=True)
        text = " ".join(text.split())
        return f": {text[:200]}" if text else ""

    def _read(self, content: bytes, search: WebSearch) -> SearchAnswer:
        try:
            answer: Any = self._redactor.redacted_value(json.loads(content))
            if not isinstance(answer, Mapping):
                raise TypeError("not an object")
            found = self._provider.results(answer)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise WebSearchUnavailable(
                self._provider.name, "answered with something that is not a list of results"
            ) from None
        allowed = (result for result in found if result is not None and search.allows(result))
        by_url = {result.url: result for result in reversed(list(allowed))}
        return SearchAnswer(
            provider=self._provider.name, results=tuple(reversed(by_url.values()))[: search.num_results]
        )


class _TemporaryError(Exception):
    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0
