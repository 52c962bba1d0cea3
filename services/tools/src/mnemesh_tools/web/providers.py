"""The providers of web searches, each as two pure functions: a request, and the results of an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, Protocol

from mnemesh_kit.time import Clock
from mnemesh_types.tools import SearchResult

from mnemesh_tools.model.web import MAX_TEXT_CHARS, Category, WebSearch, new_result


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
