"""The web over the tools service."""

from typing import Final

import grpc
from mnemesh.tools.v1 import web_service_pb2 as pb
from mnemesh.tools.v1.web_service_pb2_grpc import WebServiceStub
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto

from mnemesh_orchestrator.model.web import WebPart, WebQuery, WebResult

_SEARCH_SECONDS: Final = 30.0
_FETCH_SECONDS: Final = 90.0
"""Longer than a download, the waits for its slots, and the reading of the page."""


class WebClient:
    """WebPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._web = WebServiceStub(channel)

    async def search(self, query: WebQuery) -> tuple[WebResult, ...]:
        """See WebPort."""
        category = "UNSPECIFIED" if query.category is None else query.category.upper().replace(" ", "_")
        request = pb.SearchWebRequest(
            query=query.query,
            num_results=query.num_results,
            category=pb.WebSearchCategory.Value(f"WEB_SEARCH_CATEGORY_{category}"),
            include_text=query.include_text,
            include_domains=query.include_domains,
            exclude_domains=query.exclude_domains,
            start_published_time=optional_timestamp_to_proto(query.start_published_at),
            end_published_time=optional_timestamp_to_proto(query.end_published_at),
            user_location=query.user_location,
        )
        response = await self._web.SearchWeb(request, timeout=_SEARCH_SECONDS)
        return tuple(
            WebResult(
                each.title,
                each.url,
                optional_timestamp_from_proto(each, "published_time"),
                tuple(each.snippets),
                each.text,
                each.author,
            )
            for each in response.results
        )

    async def fetch(self, url: str, start: int) -> WebPart:
        """See WebPort."""
        response = await self._web.FetchWebpage(pb.FetchWebpageRequest(url=url, start=start), timeout=_FETCH_SECONDS)
        return WebPart(
            response.url,
            response.title,
            response.text,
            response.start,
            response.total_chars,
            optional_timestamp_from_proto(response, "published_time"),
            response.truncated,
        )
