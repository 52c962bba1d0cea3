"""What every provider of searches has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from mnemesh_tools.model.web import Category, SearchResult, WebSearch


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

    def request(self, search: WebSearch) -> ProviderRequest:
        """Returns the request of a search."""
        ...

    def results(self, answer: Mapping[str, Any]) -> list[SearchResult | None]:
        """Returns the results of an answer; None for one that has no URL.

        Raises:
            TypeError, KeyError, AttributeError: It is no answer of this provider.
        """
        ...


def day(at: datetime) -> str:
    """Returns the date of a time as YYYY-MM-DD."""
    return at.date().isoformat()


def objects(value: Any) -> list[Mapping[str, Any]]:
    """Returns the objects of a list. Raises TypeError if it is no list."""
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
