"""Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mnemesh_tools.model.web import Category, SearchResult, WebSearch, new_result
from mnemesh_tools.web.providers.wire import ProviderRequest, day, objects

_MAX_RESULTS: Final = 20
_TOPICS: Final = {Category.NEWS: "news", Category.FINANCIAL_REPORT: "finance"}
# Tavily has no operators in queries. A domain stands for the categories that are one site.
_SITES: Final = {Category.GITHUB: "github.com", Category.TWEET: "x.com", Category.LINKEDIN_PROFILE: "linkedin.com"}


class Tavily:
    """The API of Tavily."""

    name = "tavily"
    default_url = "https://api.tavily.com"
    key_header = "Authorization"
    key_prefix = "Bearer "

    def request(self, search: WebSearch) -> ProviderRequest:
        """See Provider."""
        domains = list(search.include_domains)
        if not domains and search.category in _SITES:
            domains = [_SITES[search.category]]
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
