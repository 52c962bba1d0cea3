"""Pages by the id of a row that the client holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Literal, TypeVar

import msgspec
from mnemesh.types.v1 import paging_pb2

from mnemesh_gateway.letta.errors import invalid_field

T = TypeVar("T")
MAX_PAGE: Final = 1000
READ_SECONDS: Final = 15.0


class PageQuery(msgspec.Struct, kw_only=True):
    """The parameters of every list. Subclasses set another default order where Letta has one."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None


async def listed(
    method: Callable[..., Awaitable[Any]],
    request: Any,
    rows: str,
    query: PageQuery,
    *,
    default: Literal["asc", "desc"],
    limit: int = 50,
) -> list[Any]:
    """Returns the rows of a list RPC that a page has.

    The rows after `after` and before `before` in the order are the range; the page is its first `limit` rows. A page of
    more rows than a call returns takes several calls.

    Args:
        method: the method of the stub.
        request: its request with filters; the page is set here.
        rows: the name of the response's repeated field.
        query: the client's parameters.
        default: the order if the client names none.
        limit: the size of the page if the client names none.

    Raises:
        ValidationFailed: the limit is negative.
    """
    wanted = limit if query.limit is None else query.limit
    if wanted < 0:
        raise invalid_field("Input should be greater than or equal to 0", "query", "limit")
    request.order = order_to_proto(query.order or default)
    if query.after:
        request.after_id = query.after
    if query.before:
        request.before_id = query.before
    found: list[Any] = []
    while len(found) < wanted:
        request.page_size = min(wanted - len(found), MAX_PAGE)
        response = await method(request, timeout=READ_SECONDS)
        found += getattr(response, rows)
        if not response.next_page_token:
            break
        request.page_token = response.next_page_token
    return found[:wanted]


async def chronological(
    method: Callable[..., Awaitable[Any]], request: Any, rows: str, query: PageQuery, *, limit: int
) -> list[Any]:
    """Returns the rows of a page, oldest first.

    By default these are the newest rows of the range, and the oldest for `order=asc`. The range is always the rows that
    are newer than `after` and older than `before`. The arguments are those of `listed`.
    """
    if query.order == "asc":
        return await listed(method, request, rows, query, default="asc", limit=limit)
    newest = PageQuery(before=query.after, after=query.before, limit=query.limit)
    return (await listed(method, request, rows, newest, default="desc", limit=limit))[::-1]


async def responses(method: Callable[..., Awaitable[Any]], request: Any) -> AsyncIterator[Any]:
    """Yields the pages of a list RPC until the last one. Sets the page of the request."""
    request.page_size = MAX_PAGE
    while True:
        response = await method(request, timeout=READ_SECONDS)
        yield response
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


def order_to_proto(order: str) -> paging_pb2.SortOrder.ValueType:
    """Returns the order of a list."""
    return paging_pb2.SORT_ORDER_ASCENDING if order == "asc" else paging_pb2.SORT_ORDER_DESCENDING


def cut(rows: list[T], query: PageQuery, key: Callable[[T], str], *, limit: int = 50) -> list[T]:
    """Returns the page of rows that are all at hand, in their order, or reversed for `order=desc`."""
    ordered = rows[::-1] if query.order == "desc" else rows
    keys = [key(row) for row in ordered]
    start = keys.index(query.after) + 1 if query.after in keys else 0
    end = keys.index(query.before) if query.before in keys else len(ordered)
    return ordered[start:end][: limit if query.limit is None else max(0, query.limit)]
