"""Lists that fetch their pages while they are read, and searches with all their pages."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Literal

from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.errors import Aborted

Order = Literal["asc", "desc"]

_ORDERS = {
    None: paging_pb2.SORT_ORDER_UNSPECIFIED,
    "asc": paging_pb2.SORT_ORDER_ASCENDING,
    "desc": paging_pb2.SORT_ORDER_DESCENDING,
}
_LARGEST_PAGE = 1000
_ATTEMPTS: Final = 5


def sort_order(order: Order | None) -> paging_pb2.SortOrder.ValueType:
    """Returns the enum value of an order; None is the default of the method."""
    return _ORDERS[order]


async def paginate(
    call: Callable[[Any], Awaitable[Any]], request: Any, field: str, limit: int | None = None
) -> AsyncIterator[Any]:
    """Yields the rows of a List method, page after page.

    Args:
        call: the method of a stub.
        request: the request. Its page_size and page_token are overwritten.
        field: the name of the repeated field in the response.
        limit: the maximum number of rows; None yields all.
    """
    left = limit
    while left is None or left > 0:
        if left is not None:
            request.page_size = min(left, _LARGEST_PAGE)
        response = await call(request)
        for row in getattr(response, field):
            yield row
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token
        if left is not None:
            left -= len(getattr(response, field))


async def whole_answer(call: Callable[[Any], Awaitable[Any]], request: Any, field: str = "hits") -> Any:
    """Returns the answer to a search, or to a read of many rows, with what all pages have.

    Mostly there is one page, and one call. If what the pages show has changed meanwhile, it is read again.

    Args:
        call: the method of a stub.
        request: the request. Its page_token is overwritten.
        field: the name of the repeated field in the response, such as `context.messages`.

    Raises:
        Aborted: it changed each time.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(Aborted):
            return await _follow(call, request, attrgetter(field))
    return await _follow(call, request, attrgetter(field))


async def _follow(call: Callable[[Any], Awaitable[Any]], request: Any, rows: Callable[[Any], Any]) -> Any:
    request.page_token = ""
    answer = await call(request)
    while answer.next_page_token:
        request.page_token = answer.next_page_token
        page = await call(request)
        rows(answer).extend(rows(page))
        answer.next_page_token = page.next_page_token
    return answer
