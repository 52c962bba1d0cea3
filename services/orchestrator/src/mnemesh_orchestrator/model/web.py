"""Searches of the web, what they find, and parts of pages."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WebQuery:
    """A search of the web. `category` is one of the values of the tool's argument."""

    query: str
    num_results: int = 10
    category: str | None = None
    include_text: bool = False
    include_domains: tuple[str, ...] = ()
    exclude_domains: tuple[str, ...] = ()
    start_published_at: datetime | None = None
    end_published_at: datetime | None = None
    user_location: str = ""


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that a search found."""

    title: str
    url: str
    published_at: datetime | None = None
    snippets: tuple[str, ...] = ()
    text: str = ""
    author: str = ""


@dataclass(frozen=True, slots=True)
class WebPart:
    """A part of the text of a page, which has `total` characters in all."""

    url: str
    title: str
    text: str
    start: int
    total: int
    published_at: datetime | None = None
    truncated: bool = False

    @property
    def end(self) -> int:
        """The number of the first character after the part."""
        return self.start + len(self.text)
