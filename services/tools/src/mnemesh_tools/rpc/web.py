"""The servicer of the web, and the conversion of its messages."""

from typing import Any, Final

import grpc
from mnemesh.tools.v1 import web_service_pb2 as pb
from mnemesh.tools.v1 import web_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto

from mnemesh_tools.model.web import Category, PagePart, WebSearch, new_search
from mnemesh_tools.usecases.web import WebService

_CATEGORIES: Final[dict[int, Category | None]] = {
    pb.WEB_SEARCH_CATEGORY_UNSPECIFIED: None,
    **{pb.WebSearchCategory.Value(f"WEB_SEARCH_CATEGORY_{each.name}"): each for each in Category},
}


def _category(number: int) -> Category | None:
    if number not in _CATEGORIES:
        raise InvalidArgument(f"category has the unknown value {number}.", field="category")
    return _CATEGORIES[number]


def search_from_proto(request: pb.SearchWebRequest) -> WebSearch:
    """Returns the search of a request.

    Raises:
        InvalidArgument: A field has a value that is not allowed.
    """
    return new_search(
        query=request.query,
        num_results=request.num_results,
        category=_category(request.category),
        include_text=request.include_text,
        include_domains=tuple(request.include_domains),
        exclude_domains=tuple(request.exclude_domains),
        start_published_at=optional_timestamp_from_proto(request, "start_published_time"),
        end_published_at=optional_timestamp_from_proto(request, "end_published_time"),
        user_location=request.user_location,
    )


def part_to_proto(part: PagePart) -> pb.FetchWebpageResponse:
    """Returns the message of a part of a page."""
    page = part.page
    return pb.FetchWebpageResponse(
        url=page.url,
        title=page.title,
        text=part.text,
        start=part.start,
        total_chars=len(page.text),
        media_type=page.media_type,
        published_time=optional_timestamp_to_proto(page.published_at),
        truncated=page.truncated,
    )


Context = grpc.aio.ServicerContext[Any, Any]


class WebServicer(web_service_pb2_grpc.WebServiceServicer):
    """Serves `mnemesh.tools.v1.WebService`."""

    def __init__(self, service: WebService) -> None:
        self._service = service

    async def SearchWeb(self, request: pb.SearchWebRequest, context: Context) -> pb.SearchWebResponse:
        return (await self._service.search(current_principal(), search_from_proto(request))).to_proto()

    async def FetchWebpage(self, request: pb.FetchWebpageRequest, context: Context) -> pb.FetchWebpageResponse:
        return part_to_proto(
            await self._service.fetch(current_principal(), request.url, request.start, request.max_chars)
        )
