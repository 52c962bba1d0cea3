"""The pages of lists: tokens that are bound to their query, bounds, and answers that are read as a whole."""

import base64
import binascii
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
from google.protobuf.message import Message
from mnemesh.types.v1 import paging_pb2

from mnemesh_kit.errors import Aborted, InvalidArgument, PageTokenInvalid
from mnemesh_kit.text import require_no_nul

T = TypeVar("T")
U = TypeVar("U")
M = TypeVar("M", bound=Message)

Scalar = str | int | float | bool | None

_DEFAULT_SIZE: Final = 50
_MAX_SIZE: Final = 1_000
MAX_PAGE_BYTES: Final = 3_000_000
"""The largest size of the items of a page. gRPC clients refuse responses above 4 MB unless they are configured."""
_FIELD_BYTES: Final = 6
"""The number and the length before each item of a response."""
_ATTEMPTS: Final = 5
R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a list: after the row with this sort value and id."""

    value: Scalar
    id: str


@dataclass(frozen=True, slots=True)
class PageQuery:
    """The page of a list that a request asks for."""

    limit: int
    ascending: bool
    after_id: str | None = None
    """Only rows after the row with this id, in the order of the list."""
    before_id: str | None = None
    """Only rows before the row with this id, in the order of the list."""
    cursor: Cursor | None = None
    """The end of the previous page."""
    fingerprint: str = ""
    """A hash of the filters and the order, to which page tokens are bound."""
    max_bytes: int | None = None
    """The largest size of the items of the page together; None for no limit. A page has at least one item."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: tuple[T, ...]
    positions: tuple[Cursor, ...] = ()
    """The position of each item in the list: a page can end after any of them."""
    more: bool = False
    """True if the list has more items after this page."""

    def __post_init__(self) -> None:
        if len(self.items) != len(self.positions):
            raise ValueError("a page needs the position of each item")

    @property
    def next_cursor(self) -> Cursor | None:
        """The start of the next page; None on the last one."""
        return self.positions[-1] if self.more else None

    def map(self, convert: Callable[[T], U]) -> "Page[U]":
        """Returns the page with `convert` applied to each item."""
        return self.with_items(convert(item) for item in self.items)

    def with_items(self, items: Iterable[U]) -> "Page[U]":
        """Returns the page with other items, which stand for those of this page in the same order."""
        return Page(tuple(items), self.positions, self.more)

    def first(self, count: int) -> "Page[T]":
        """Returns the first items of the page; the others follow on the next one."""
        if count >= len(self.items):
            return self
        return Page(self.items[:count], self.positions[:count], more=True)


def page_query(request: Message, *, default_ascending: bool = True) -> PageQuery:
    """Returns the page that a List request asks for, from the paging fields that all of them have.

    The page has at most MAX_PAGE_BYTES; see `bounded`.

    Args:
        request: the request. Its other fields are filters, to which page tokens are bound.
        default_ascending: the order if the request has none.

    Raises:
        InvalidArgument: a page size below 0 or above the largest one, an unknown order, or an invalid id.
        PageTokenInvalid: the token is malformed, or was issued for other filters or another order.
    """
    fields: Any = request
    if not 0 <= fields.page_size <= _MAX_SIZE:
        raise InvalidArgument(f"page_size must be between 0 and {_MAX_SIZE}.", field="page_size")
    match fields.order:
        case paging_pb2.SORT_ORDER_UNSPECIFIED:
            ascending = default_ascending
        case paging_pb2.SORT_ORDER_ASCENDING | paging_pb2.SORT_ORDER_DESCENDING as order:
            ascending = order == paging_pb2.SORT_ORDER_ASCENDING
        case _:
            raise InvalidArgument("order must be one of the known sort orders.", field="order")
    by = request.DESCRIPTOR.fields_by_name.get("order_by")
    if by is not None and by.enum_type is not None and fields.order_by not in by.enum_type.values_by_number:
        raise InvalidArgument(f"order_by has the unknown value {fields.order_by}.", field="order_by")
    for name in ("after_id", "before_id"):
        require_no_nul(getattr(fields, name), name)
    fingerprint = _fingerprint(request)
    return PageQuery(
        limit=fields.page_size or _DEFAULT_SIZE,
        ascending=ascending,
        after_id=fields.after_id if request.HasField("after_id") else None,
        before_id=fields.before_id if request.HasField("before_id") else None,
        cursor=_decode(fields.page_token, fingerprint) if fields.page_token else None,
        fingerprint=fingerprint,
        max_bytes=MAX_PAGE_BYTES,
    )


def next_page_token(query: PageQuery, page: Page[Any]) -> str:
    """Returns the token of the page after `page`; "" if it is the last one."""
    return page_token(query, page.next_cursor)


def page_token(query: PageQuery, cursor: Cursor | None) -> str:
    """Returns the token of the page after a position; "" if there is none."""
    return "" if cursor is None else _encode(query.fingerprint, cursor)


def bounded(query: PageQuery, page: Page[T], size_of: Callable[[T], int] | None = None) -> Page[T]:
    """Returns the page as the response has it: it ends before its items exceed the largest size.

    Args:
        query: the page that the request asks for.
        page: the items as the response has them: messages or strings.
        size_of: returns the size of an item in the response, in bytes, if items are neither.
    """
    return page.first(fitting(page.items, size_of or _item_bytes, query.max_bytes))


def fitting(items: Sequence[T], size_of: Callable[[T], int], max_bytes: int | None) -> int:
    """Returns how many items from the beginning fit into a page of `max_bytes`; at least one, if there is one."""
    if max_bytes is None:
        return len(items)
    total = 0
    for count, item in enumerate(items):
        total += size_of(item)
        if total > max_bytes and count:
            return count
    return len(items)


def bounded_hits(request: Message, hits: Sequence[M | None], version: str = "") -> tuple[list[M], str]:
    """Returns the hits of a search's answer, which ends before it exceeds MAX_PAGE_BYTES, and the token of the rest.

    The token is "" if no hits are left.

    Args:
        request: the request. Its `limit` counts the hits of all answers.
        hits: the hits from `offset_from_token` on, best first, as the response has them. None stands for a place of the
            result that has none, such as an unknown id.
        version: of what the rows are a part of, if all pages must show the same; see `version_from_token`.
    """
    count = fitting(hits, lambda hit: 0 if hit is None else _item_bytes(hit), MAX_PAGE_BYTES)
    shown = [hit for hit in hits[:count] if hit is not None]
    return shown, offset_token(request, offset_from_token(request) + count, version) if count < len(hits) else ""


def offset_token(request: Message, offset: int, version: str = "") -> str:
    """Returns the token of the rest of a ranked result."""
    return _encode(_fingerprint(request), Cursor(offset, version))


def version_from_token(request: Message) -> str:
    """Returns the version that the token of a request was issued for; "" without one. Raises PageTokenInvalid."""
    fields: Any = request
    return _decode(fields.page_token, _fingerprint(request)).id if fields.page_token else ""


def offset_from_token(request: Message) -> int:
    """Returns the number of results that earlier answers to a search contained: that of its `page_token`, or 0.

    Raises:
        PageTokenInvalid: the token is malformed, or was issued for another search.
    """
    fields: Any = request
    if not fields.page_token:
        return 0
    offset = _decode(fields.page_token, _fingerprint(request)).value
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise PageTokenInvalid("page_token was not issued by this server.", field="page_token")
    return offset


def _item_bytes(item: Any) -> int:
    return _FIELD_BYTES + (item.ByteSize() if isinstance(item, Message) else len(item.encode()))


def page_of(items: Iterable[T], query: PageQuery, id: Callable[[T], str]) -> Page[T]:  # noqa: A002
    """Returns a page of items in memory, ordered by id. `after_id` and `before_id` need not exist among them."""
    ordered = sorted(items, key=id, reverse=not query.ascending)

    def is_after(one: str, other: str) -> bool:
        return one > other if query.ascending else one < other

    for bound in (query.after_id, query.cursor.id if query.cursor is not None else None):
        if bound is not None:
            ordered = [item for item in ordered if is_after(id(item), bound)]
    if query.before_id is not None:
        ordered = [item for item in ordered if is_after(query.before_id, id(item))]
    shown = tuple(ordered[: query.limit])
    more = len(ordered) > len(shown)
    return Page(shown, tuple(Cursor(id(item), id(item)) for item in shown), more)


def _fingerprint(request: Message) -> str:
    query = type(request)()
    query.CopyFrom(request)
    for name in ("page_token", "page_size"):
        if name in request.DESCRIPTOR.fields_by_name:
            query.ClearField(name)
    content = request.DESCRIPTOR.full_name.encode() + b"\0" + query.SerializeToString(deterministic=True)
    return hashlib.sha256(content).hexdigest()[:16]


def _encode(fingerprint: str, cursor: Cursor) -> str:
    encoded = msgspec.json.encode((fingerprint, cursor.value, cursor.id))
    return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def _decode(token: str, fingerprint: str) -> Cursor:
    try:
        padded = token + "=" * (-len(token) % 4)
        bound_to, value, id_ = msgspec.json.decode(
            base64.b64decode(padded, altchars=b"-_", validate=True), type=tuple[str, Scalar, str]
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise PageTokenInvalid("page_token was not issued by this server.", field="page_token") from error
    if bound_to != fingerprint:
        raise PageTokenInvalid("page_token belongs to another query.", field="page_token")
    if "\0" in id_:
        raise PageTokenInvalid("page_token was not issued by this server.", field="page_token")
    return Cursor(value, id_)


async def whole_answer(
    method: Callable[..., Awaitable[R]], request: Message, *, seconds: float, field: str = "hits"
) -> R:
    """Returns the answer to a request, with what its further pages have. An answer without a token takes one call.

    If what the pages show has changed meanwhile, it is read again.

    Args:
        method: the method of a stub.
        request: the request, which stays as it is.
        seconds: the deadline of each call.
        field: the repeated field of the response to which the pages add, such as `context.messages`.

    Raises:
        Aborted: it changed each time.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(Aborted):
            return await _follow(method, request, seconds, attrgetter(field))
    return await _follow(method, request, seconds, attrgetter(field))


async def _follow(
    method: Callable[..., Awaitable[R]], request: Message, seconds: float, rows: Callable[[Any], Any]
) -> R:
    answer: Any = await method(request, timeout=seconds)
    if not answer.next_page_token:
        return answer  # type: ignore[no-any-return]
    following: Any = type(request)()
    following.CopyFrom(request)
    while answer.next_page_token:
        following.page_token = answer.next_page_token
        page: Any = await method(following, timeout=seconds)
        rows(answer).extend(rows(page))
        answer.next_page_token = page.next_page_token
    return answer  # type: ignore[no-any-return]
