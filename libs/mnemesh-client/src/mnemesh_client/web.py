"""Searches of the web, and the readable text of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mnemesh.tools.v1 import web_service_pb2, web_service_pb2_grpc
from mnemesh_kit.time import optional_timestamp_to_proto

from mnemesh_client.transport import Channel

_SEARCH_SECONDS: Final = 30.0
_FETCH_SECONDS: Final = 90.0


class WebClient:
    """Calls of WebService, as `client.web`. What they return was written by others.

    Errors: FailedPrecondition with the reasons WEB_SEARCH_NOT_CONFIGURED, WEB_SEARCH_REFUSED, WEB_PAGE_REFUSED and
    WEB_PAGE_UNREADABLE; Unavailable WEB_SEARCH_UNAVAILABLE.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = web_service_pb2_grpc.WebServiceStub(channel)

    async def search(
        self,
        query: str,
        *,
        num_results: int = 10,
        category: str | None = None,
        include_text: bool = False,
        include_domains: Sequence[str] = (),
        exclude_domains: Sequence[str] = (),
        since: datetime | None = None,
        until: datetime | None = None,
        country: str = "",
    ) -> list[web_service_pb2.WebSearchResult]:
        """Returns what the operator's provider found, best first.

        Args:
            query: What to look for.
            num_results: The number of results, between 1 and 100.
            category: What to prefer: "company", "research paper", "news", "pdf", "github", "tweet", "personal site",
                "linkedin profile" or "financial report".
            include_text: Whether to return the text of the pages, if the provider has it.
            include_domains: Only results of these domains.
            exclude_domains: No results of these domains.
            since: Only pages published from this time on.
            until: Only pages published until this time.
            country: The country of the searcher as two letters.

        Raises:
            ValueError: There is no such category.
        """
        name = "UNSPECIFIED" if category is None else category.upper().replace(" ", "_")
        request = web_service_pb2.SearchWebRequest(
            query=query,
            num_results=num_results,
            category=web_service_pb2.WebSearchCategory.Value(f"WEB_SEARCH_CATEGORY_{name}"),
            include_text=include_text,
            include_domains=include_domains,
            exclude_domains=exclude_domains,
            start_published_time=optional_timestamp_to_proto(since),
            end_published_time=optional_timestamp_to_proto(until),
            user_location=country,
        )
        return list((await self.stub.SearchWeb(request, timeout=_SEARCH_SECONDS)).results)

    async def fetch(
        self, url: str, *, start: int = 0, max_chars: int | None = None
    ) -> web_service_pb2.FetchWebpageResponse:
        """Returns a part of the readable text of a page, as Markdown if it is HTML or PDF.

        Args:
            url: The URL.
            start: The first character of the text to return.
            max_chars: The most characters to return; 20,000 by default.
        """
        request = web_service_pb2.FetchWebpageRequest(url=url, start=start, max_chars=max_chars or 0)
        return await self.stub.FetchWebpage(request, timeout=_FETCH_SECONDS)
