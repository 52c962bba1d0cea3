"""Lists that fetch their pages as they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from mnemesh.types.v1 import paging_pb2

Order = Literal["asc", "desc"]

_ORDERS = {
    None: paging_pb2.SORT_ORDER_UNSPECIFIED,
    "asc": paging_pb2.SORT_ORDER_ASCENDING,
    "desc": paging_pb2.SORT_ORDER_DESCENDING,
}
_LARGEST_PAGE = 1000


def sort_order(order: Order | None) -> paging_pb2.SortOrder.ValueType:
    """The contract's name of an order; None leaves it to the method."""
    return _ORDERS[order]


async def every(
    call: Callable[[Any], Awaitable[Any]], request: Any, field: str, limit: int | None = None
) -> AsyncIterator[Any]:
    """Yields the rows of a List method, page after page.

    Args:
        call: the method of a stub.
        request: its request; page_size and page_token are written here.
        field: the response's repeated field.
        limit: stop after so many rows; None reads to the end.
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
