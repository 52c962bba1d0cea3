"""Asks the configured provider, in bounded time, and repeats what may succeed the next time."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from mnemesh_kit.network import failure_of_connection
from mnemesh_kit.retries import Backoff
from mnemesh_kit.time import Clock
from mnemesh_sandbox.redaction import Redactor
from mnemesh_types.tools import SearchAnswer, SearchResult

from mnemesh_tools.errors import WebSearchRefused, WebSearchUnavailable
from mnemesh_tools.model.web import MAX_TEXT_CHARS, Category, WebSearch, new_result

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRequest:
    """An HTTP request without its key."""

    method: Literal["GET", "POST"]
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Of the URL."""
    body: Mapping[str, Any] | None = None


class Provider(Protocol):
    """One API of searches."""

    name: str
    default_url: str
    """"" if each operator has a server of its own."""
    key_header: str
    """The header that carries the key; "" if the API has none."""
    key_prefix: str
    """What precedes the key in its header."""

    def request(self, search: WebSearch) -> ProviderRequest: ...

    def results(self, answer: Mapping[str, Any]) -> list[SearchResult | None]:
        """Returns the results of an answer; None for one that has no URL.

        Raises:
            TypeError, KeyError, AttributeError: It is not an answer of this provider.
        """
        ...


def day(at: datetime) -> str:
    """Returns the date of a time as YYYY-MM-DD."""
    return at.date().isoformat()


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Returns the objects of a list. Raises TypeError if it is not a list."""
    if not isinstance(value, list):
        raise TypeError("not a list")
    return [each for each in value if isinstance(each, dict)]


_SITES = {Category.GITHUB: "github.com", Category.TWEET: "x.com", Category.LINKEDIN_PROFILE: "linkedin.com/in"}


def query_with_operators(search: WebSearch) -> str:
    """Returns the query with the operators of search engines for domains and some categories."""
    parts = [search.query]
    wanted = [f"site:{domain}" for domain in search.include_domains]
    if wanted:
        parts.append(wanted[0] if len(wanted) == 1 else f"({' OR '.join(wanted)})")
    elif search.category in _SITES:
        parts.append(f"site:{_SITES[search.category]}")
    if search.category is Category.PDF:
        parts.append("filetype:pdf")
    parts += [f"-site:{domain}" for domain in search.exclude_domains]
    return " ".join(parts)


_MAX_RESULTS: Final = 20
_FIRST_DAY: Final = datetime(1990, 1, 1, tzinfo=UTC)
_LAST_DAY: Final = datetime(2100, 1, 1, tzinfo=UTC)


class Brave:
    """The API of Brave Search."""

    name = "brave"
    default_url = "https://api.search.brave.com/res/v1"
    key_header = "X-Subscription-Token"
    key_prefix = ""

    def request(self, search: WebSearch) -> ProviderRequest:
        """See Provider."""
        parameters = {
            "q": query_with_operators(search),
            "count": str(min(search.num_results, _MAX_RESULTS)),
            "text_decorations": "false",
        }
        if search.user_location is not None:
            parameters["country"] = search.user_location
        start, end = search.start_published_at, search.end_published_at
        if start is not None or end is not None:
            parameters["freshness"] = f"{day(start or _FIRST_DAY)}to{day(end or _LAST_DAY)}"
        path = "/news/search" if search.category is Category.NEWS else "/web/search"
        return ProviderRequest(method="GET", path=path, parameters=parameters)

    def results(self, answer: Mapping[str, Any]) -> list[SearchResult | None]:
        """See Provider. An answer without results has no `web`."""
        if answer["type"] == "news":
            found = objects(answer["results"])
        else:
            found = objects((answer.get("web") or {}).get("results", []))
        return [
            new_result(
                title=each.get("title"),
                url=each.get("url"),
                published=each.get("page_age"),
                snippets=[each.get("description"), *(each.get("extra_snippets") or ())],
            )
            for each in found
        ]


class Exa:
    """The API of Exa, whose arguments are those of the tool."""

    name = "exa"
    default_url = "https://api.exa.ai"
    key_header = "x-api-key"
    key_prefix = ""

    def request(self, search: WebSearch) -> ProviderRequest:
        """See Provider."""
        body: dict[str, Any] = {
            "query": search.query,
            "type": "auto",
            "numResults": search.num_results,
            "contents": {
                "highlights": True,
                **({"text": {"maxCharacters": MAX_TEXT_CHARS}} if search.include_text else {}),
            },
        }
        optional = {
            "category": search.category and search.category.value,
            "includeDomains": list(search.include_domains),
            "excludeDomains": list(search.exclude_domains),
            "startPublishedDate": search.start_published_at and search.start_published_at.isoformat(),
            "endPublishedDate": search.end_published_at and search.end_published_at.isoformat(),
            "userLocation": search.user_location,
        }
        body |= {name: value for name, value in optional.items() if value}
        return ProviderRequest(method="POST", path="/search", body=body)

    def results(self, answer: Mapping[str, Any]) -> list[SearchResult | None]:
        """See Provider."""
        return [
            new_result(
                title=found.get("title"),
                url=found.get("url"),
                published=found.get("publishedDate"),
                snippets=[*(found.get("highlights") or ()), found.get("summary")],
                text=found.get("text"),
                author=found.get("author"),
            )
            for found in objects(answer["results"])
        ]


_CATEGORIES: Final = {
    Category.NEWS: "news",
    Category.RESEARCH_PAPER: "science",
    Category.GITHUB: "it",
}
_RANGES: Final = (("day", timedelta(days=1)), ("month", timedelta(days=30)), ("year", timedelta(days=365)))


class Searxng:
    """The API of a SearXNG server, which must offer the format json (`search.formats` of its settings)."""

    name = "searxng"
    default_url = ""
    key_header = ""
    key_prefix = ""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def request(self, search: WebSearch) -> ProviderRequest:
        """See Provider."""
        parameters = {"q": query_with_operators(search), "format": "json", "pageno": "1"}
        if search.category is not None and search.category in _CATEGORIES:
            parameters["categories"] = _CATEGORIES[search.category]
        if search.start_published_at is not None:
            parameters |= self._time_range(search.start_published_at)
        return ProviderRequest(method="GET", path="/search", parameters=parameters)

    def results(self, answer: Mapping[str, Any]) -> list[SearchResult | None]:
        """See Provider."""
        return [
            new_result(
                title=found.get("title"),
                url=found.get("url"),
                published=found.get("publishedDate"),
                snippets=[found.get("content")],
                author=found.get("author"),
            )
            for found in objects(answer["results"])
        ]

    def _time_range(self, start: datetime) -> dict[str, str]:
        """Returns the shortest range that begins before a time, if there is one."""
        age = self._clock.now() - start
        return next(({"time_range": name} for name, length in _RANGES if age <= length), {})


_TOPICS: Final = {Category.NEWS: "news", Category.FINANCIAL_REPORT: "finance"}
# Tavily has no operators in queries. A domain stands for the categories that are one site.
_TAVILY_SITES: Final = {
    Category.GITHUB: "github.com",
    Category.TWEET: "x.com",
    Category.LINKEDIN_PROFILE: "linkedin.com",
}


class Tavily:
    """The API of Tavily."""

    name = "tavily"
    default_url = "https://api.tavily.com"
    key_header = "Authorization"
    key_prefix = "Bearer "

    def request(self, search: WebSearch) -> ProviderRequest:
        """See Provider."""
        domains = list(search.include_domains)
        if not domains and search.category in _TAVILY_SITES:
            domains = [_TAVILY_SITES[search.category]]
        optional = {
            "include_domains": domains,
            "exclude_domains": list(search.exclude_domains),
            "start_date": search.start_published_at and day(search.start_published_at),
            "end_date": search.end_published_at and day(search.end_published_at),
            "include_raw_content": "text" if search.include_text else None,
        }
        body: dict[str, Any] = {
            "query": search.query,
            "max_results": min(search.num_results, _MAX_RESULTS),
            "topic": "general" if search.category is None else _TOPICS.get(search.category, "general"),
            **{name: value for name, value in optional.items() if value},
        }
        return ProviderRequest(method="POST", path="/search", body=body)

    def results(self, answer: Mapping[str, Any]) -> list[SearchResult | None]:
        """See Provider."""
        return [
            new_result(
                title=found.get("title"),
                url=found.get("url"),
                published=found.get("published_date"),
                snippets=[found.get("content")],
                text=found.get("raw_content"),
            )
            for found in objects(answer["results"])
        ]


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
