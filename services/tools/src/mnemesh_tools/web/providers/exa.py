"""Exa: https://docs.exa.ai/reference/search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mnemesh_tools.model.web import MAX_TEXT_CHARS, SearchResult, WebSearch, new_result
from mnemesh_tools.web.providers.wire import ProviderRequest, objects


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
