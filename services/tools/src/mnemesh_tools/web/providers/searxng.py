"""SearXNG: https://docs.searxng.org/dev/search_api.html."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from mnemesh_kit.clock import Clock

from mnemesh_tools.model.web import Category, SearchResult, WebSearch, new_result
from mnemesh_tools.web.providers.wire import ProviderRequest, objects, query_with_operators

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
