"""Brave: https://api-dashboard.search.brave.com/app/documentation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mnemesh_tools.model.web import Category, SearchResult, WebSearch, new_result
from mnemesh_tools.web.providers.wire import ProviderRequest, day, objects, query_with_operators

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
