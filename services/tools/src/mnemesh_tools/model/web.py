"""Searches of the web and pages of it: requests, their validation, and results."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.unicode import well_formed
from mnemesh_types.tools import SearchResult

MAX_PAGE_CHARS: Final = 400_000
DEFAULT_PART_CHARS: Final = 20_000
MAX_PART_CHARS: Final = 100_000
MAX_RESULTS: Final = 100
DEFAULT_RESULTS: Final = 10
MAX_QUERY_CHARS: Final = 2_000
MAX_DOMAINS: Final = 20
MAX_SNIPPETS: Final = 5
MAX_SNIPPET_CHARS: Final = 500
MAX_TEXT_CHARS: Final = 5_000
_MAX_TITLE_CHARS: Final = 300
_MAX_URL_CHARS: Final = 2_000
_DOMAIN: Final = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9-]{2,63}")
_COUNTRY: Final = re.compile(r"[A-Z]{2}")
_TAG: Final = re.compile(r"</?(?:strong|b|em|i|mark)>", re.IGNORECASE)


class Category(Enum):
    """What a search prefers. The values are those of the argument of the tool."""

    COMPANY = "company"
    RESEARCH_PAPER = "research paper"
    NEWS = "news"
    PDF = "pdf"
    GITHUB = "github"
    TWEET = "tweet"
    PERSONAL_SITE = "personal site"
    LINKEDIN_PROFILE = "linkedin profile"
    FINANCIAL_REPORT = "financial report"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSearch:
    query: str
    num_results: int = DEFAULT_RESULTS
    category: Category | None = None
    include_text: bool = False
    include_domains: tuple[str, ...] = ()
    """In lower case."""
    exclude_domains: tuple[str, ...] = ()
    start_published_at: datetime | None = None
    end_published_at: datetime | None = None
    user_location: str | None = None
    """A country as two capital letters."""

    def allows(self, result: SearchResult) -> bool:
        """Returns whether a result has the domain and the time that were asked for."""
        host = (urlsplit(result.url).hostname or "").lower()
        if self.include_domains and not any(_is_within(host, domain) for domain in self.include_domains):
            return False
        if any(_is_within(host, domain) for domain in self.exclude_domains):
            return False
        at = result.published_at
        if at is None:
            return True
        is_early = self.start_published_at is not None and at < self.start_published_at
        return not is_early and (self.end_published_at is None or at <= self.end_published_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page that was downloaded and read."""

    url: str
    """After the redirects."""
    media_type: str
    title: str = ""
    text: str = ""
    published_at: datetime | None = None
    truncated: bool = False
    """The document was longer than what was read of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A part of a page's text."""

    page: WebPage
    start: int
    text: str


def new_search(
    *,
    query: str,
    num_results: int,
    category: Category | None,
    include_text: bool,
    include_domains: tuple[str, ...],
    exclude_domains: tuple[str, ...],
    start_published_at: datetime | None,
    end_published_at: datetime | None,
    user_location: str,
) -> WebSearch:
    """Returns a valid search.

    Raises:
        InvalidArgument: A field has a value that is not allowed.
    """
    if not query.strip():
        raise InvalidArgument("query must not be empty.", field="query")
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidArgument(f"query must have at most {MAX_QUERY_CHARS:,} characters.", field="query")
    if not 0 <= num_results <= MAX_RESULTS:
        raise InvalidArgument(f"num_results must be between 1 and {MAX_RESULTS}.", field="num_results")
    if start_published_at is not None and end_published_at is not None and start_published_at > end_published_at:
        text = "start_published_time must not be later than end_published_time."
        raise InvalidArgument(text, field="start_published_time")
    country = user_location.strip().upper()
    if country and not _COUNTRY.fullmatch(country):
        raise InvalidArgument("user_location must be a country as two letters, such as US.", field="user_location")
    return WebSearch(
        query=" ".join(query.split()),
        num_results=num_results or DEFAULT_RESULTS,
        category=category,
        include_text=include_text,
        include_domains=_domains(include_domains, "include_domains"),
        exclude_domains=_domains(exclude_domains, "exclude_domains"),
        start_published_at=start_published_at,
        end_published_at=end_published_at,
        user_location=country or None,
    )


def new_result(
    *,
    title: object,
    url: object,
    published: object = None,
    snippets: list[object],
    text: object = "",
    author: object = "",
) -> SearchResult | None:
    """Returns a result with values of a provider, of any type and length; None if it has no usable URL."""
    if not isinstance(url, str) or len(url) > _MAX_URL_CHARS or not url.startswith(("http://", "https://")):
        return None
    try:
        urlsplit(url)
    except ValueError:
        return None
    url = well_formed(url)
    parts = [_plain(part, MAX_SNIPPET_CHARS) for part in snippets]
    return SearchResult(
        title=_plain(title, _MAX_TITLE_CHARS) or url[:_MAX_TITLE_CHARS],
        url=url,
        published_at=moment(published) if isinstance(published, str) else None,
        snippets=tuple(dict.fromkeys(part for part in parts if part))[:MAX_SNIPPETS],
        text=well_formed(text[:MAX_TEXT_CHARS]).strip() if isinstance(text, str) else "",
        author=_plain(author, _MAX_TITLE_CHARS),
    )


def moment(text: str) -> datetime | None:
    """Returns the time of a text in a usual form, in UTC unless it says otherwise; None for any other text."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            found = parse(text.strip())
            return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def require_part(start: int, max_chars: int) -> None:
    """Raises InvalidArgument if no part of a page can have this start and length."""
    if start < 0:
        raise InvalidArgument("start must not be negative.", field="start")
    if not 0 <= max_chars <= MAX_PART_CHARS:
        raise InvalidArgument(f"max_chars must be between 1 and {MAX_PART_CHARS:,}.", field="max_chars")


def part_of(page: WebPage, start: int, max_chars: int) -> PagePart:
    """Returns a part of a page's text.

    Raises:
        InvalidArgument: The text ends before it.
    """
    if start and start >= len(page.text):
        raise InvalidArgument(f"start must be less than {len(page.text)}, the length of the text.", field="start")
    end = start + (max_chars or DEFAULT_PART_CHARS)
    if end < len(page.text):  # prefer the end of a line
        line_end = page.text.rfind("\n", start + (end - start) // 2, end)
        end = end if line_end < 0 else line_end + 1
    return PagePart(page=page, start=start, text=page.text[start:end])


def _domains(names: tuple[str, ...], field: str) -> tuple[str, ...]:
    if len(names) > MAX_DOMAINS:
        raise InvalidArgument(f"{field} must have at most {MAX_DOMAINS} domains.", field=field)
    found = []
    for index, name in enumerate(names):
        domain = name.strip().lower().removeprefix("*.").removeprefix("www.").rstrip(".")
        if not domain.isascii():
            try:
                domain = domain.encode("idna").decode()
            except UnicodeError:
                domain = ""
        if not _DOMAIN.fullmatch(domain):
            text = f"{field}[{index}] must be a domain such as example.org, without a scheme or a path."
            raise InvalidArgument(text, field=f"{field}[{index}]")
        found.append(domain)
    return tuple(dict.fromkeys(found))


def _is_within(host: str, domain: str) -> bool:
    return host == domain or host.endswith(f".{domain}")


def _plain(value: object, limit: int) -> str:
    """Returns a text of a provider on one line, without marks of hits."""
    return well_formed(" ".join(_TAG.sub("", value).split())[:limit]) if isinstance(value, str) else ""
