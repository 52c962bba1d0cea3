"""Pages of lists: page sizes in rows and bytes, opaque tokens that are bound to their query, and keyset conditions.

Rows are ordered by a key column and then by id, so the order is total. Rows whose key is NULL come last in both
directions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import msgspec
import sqlalchemy as sa
from google.protobuf.message import Message
from mnemesh.types.v1 import paging_pb2

from mnemesh_kit.errors import InvalidArgument, NotFound, PageTokenInvalid
from mnemesh_kit.text import require_no_nul

T = TypeVar("T")
U = TypeVar("U")

Scalar = str | int | float | bool | None

MAX_PAGE_BYTES: Final = 3_000_000
"""The largest size of the items of a page. gRPC clients refuse responses above 4 MB unless they are configured."""


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


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list."""

    items: tuple[T, ...]
    next_cursor: Cursor | None = None
    """The start of the next page; None on the last one."""

    def map(self, convert: Callable[[T], U]) -> Page[U]:
        """Returns the page with `convert` applied to each item."""
        return Page(tuple(convert(item) for item in self.items), self.next_cursor)


def page_query(
    request: Message, *, default_size: int = 50, max_size: int = 1000, default_ascending: bool = True
) -> PageQuery:
    """Returns the page that a List request asks for, from the paging fields that all of them have.

    Args:
        request: the request. Its other fields are filters, to which page tokens are bound.
        default_size: the page size if the request has none.
        max_size: the largest page size.
        default_ascending: the order if the request has none.

    Raises:
        InvalidArgument: a page size below 0 or above `max_size`, an unknown order, or an invalid id.
        PageTokenInvalid: the token is malformed, or was issued for other filters or another order.
    """
    fields: Any = request
    if not 0 <= fields.page_size <= max_size:
        raise InvalidArgument(f"page_size must be between 0 and {max_size}.", field="page_size")
    match fields.order:
        case paging_pb2.SORT_ORDER_UNSPECIFIED:
            ascending = default_ascending
        case paging_pb2.SORT_ORDER_ASCENDING | paging_pb2.SORT_ORDER_DESCENDING as order:
            ascending = order == paging_pb2.SORT_ORDER_ASCENDING
        case _:
            raise InvalidArgument("order must be one of the known sort orders.", field="order")
    for name in ("after_id", "before_id"):
        require_no_nul(getattr(fields, name), name)
    fingerprint = _fingerprint(request)
    return PageQuery(
        limit=fields.page_size or default_size,
        ascending=ascending,
        after_id=fields.after_id if request.HasField("after_id") else None,
        before_id=fields.before_id if request.HasField("before_id") else None,
        cursor=_decode(fields.page_token, fingerprint) if fields.page_token else None,
        fingerprint=fingerprint,
    )


def next_page_token(query: PageQuery, page: Page[Any]) -> str:
    """Returns the token of the page after `page`; "" if it is the last one."""
    if page.next_cursor is None:
        return ""
    return _encode(query.fingerprint, page.next_cursor)


def fitting(items: Sequence[T], size_of: Callable[[T], int], max_bytes: int = MAX_PAGE_BYTES) -> int:
    """Returns how many items from the beginning fit into a page of `max_bytes`; at least one, if there is one."""
    total = 0
    for count, item in enumerate(items):
        total += size_of(item)
        if total > max_bytes and count:
            return count
    return len(items)


def offset_token(request: Message, offset: int) -> str:
    """Returns the token of the rest of a ranked result that exceeds the size of a page."""
    return _encode(_fingerprint(request), Cursor(offset, ""))


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


def paginate(
    conn: sa.Connection,
    stmt: sa.Select[Any],
    query: PageQuery,
    *,
    key: sa.ColumnElement[Any],
    id: sa.ColumnElement[str],  # noqa: A002  (it is the id column)
    scope: sa.ColumnElement[bool],
    size_of: Callable[[sa.Row[Any]], int] | None = None,
) -> Page[sa.Row[Any]]:
    """Reads one page of a select.

    Args:
        conn: the caller's transaction.
        stmt: the select with its filters, without order and limit.
        query: the page.
        key: the column to sort by. If it is NOT NULL, an index on (key, id) serves the condition.
        id: the id column, which breaks ties.
        scope: the condition under which a row is visible to the caller. `after_id` and `before_id` may name any visible
            row, also one that the filters of `stmt` exclude.
        size_of: returns the size of a row in a response, in bytes; a page ends before it exceeds MAX_PAGE_BYTES.

    Returns:
        The rows of the page, in order.

    Raises:
        NotFound: `after_id` or `before_id` does not name a visible row.
        PageTokenInvalid: the token's sort value does not fit the column.
    """
    named_key, named_id = key.label("_page_key"), id.label("_page_id")
    paged = stmt.add_columns(named_key, named_id)
    if query.cursor is not None:
        paged = paged.where(_after(key, id, query.cursor, ascending=query.ascending))
    visible = sa.select(named_key).where(scope)
    if query.after_id is not None:
        anchor = _anchor(conn, visible, id, "after_id", query.after_id)
        paged = paged.where(_after(key, id, anchor, ascending=query.ascending))
    if query.before_id is not None:
        anchor = _anchor(conn, visible, id, "before_id", query.before_id)
        paged = paged.where(_before(key, id, anchor, ascending=query.ascending))
    order = (key.asc(), id.asc()) if query.ascending else (key.desc(), id.desc())
    if _nullable(key):
        order = (order[0].nulls_last(), order[1])
    rows = conn.execute(paged.order_by(*order).limit(query.limit + 1)).all()
    shown = tuple(rows[: query.limit])
    if size_of is not None:
        shown = shown[: fitting(shown, size_of)]
    more = len(rows) > len(shown)
    return Page(shown, Cursor(_scalar(shown[-1]._page_key), shown[-1]._page_id) if more else None)


def _after(key: sa.ColumnElement[Any], id_: sa.ColumnElement[str], at: Cursor, *, ascending: bool) -> Any:
    value = _typed(key, at.value)
    tie = id_ > at.id if ascending else id_ < at.id
    if value is None:
        return sa.and_(key.is_(None), tie)
    if not _nullable(key):
        here, there = sa.tuple_(key, id_), sa.tuple_(sa.literal(value, key.type), sa.literal(at.id, id_.type))
        return here > there if ascending else here < there
    return sa.or_(key > value if ascending else key < value, sa.and_(key == value, tie), key.is_(None))


def _before(key: sa.ColumnElement[Any], id_: sa.ColumnElement[str], at: Cursor, *, ascending: bool) -> Any:
    value = _typed(key, at.value)
    tie = id_ < at.id if ascending else id_ > at.id
    if value is None:
        return sa.or_(key.is_not(None), sa.and_(key.is_(None), tie))
    return sa.or_(key < value if ascending else key > value, sa.and_(key == value, tie))


def _anchor(conn: sa.Connection, rows: sa.Select[Any], id_: sa.ColumnElement[str], field: str, row_id: str) -> Cursor:
    row = conn.execute(rows.where(id_ == row_id).limit(1)).first()
    if row is None:
        raise NotFound(f"{field} does not name a row of this list.", field=field, resource_id=row_id)
    return Cursor(_scalar(row._page_key), row_id)


def _nullable(key: sa.ColumnElement[Any]) -> bool:
    return bool(getattr(key, "nullable", True))


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
    return Page(shown, Cursor(id(shown[-1]), id(shown[-1])) if more else None)


def _scalar(value: Any) -> Scalar:
    return value.isoformat() if isinstance(value, datetime) else value


def _typed(key: sa.ColumnElement[Any], value: Scalar) -> Any:
    """Returns the value in the type of the column. A token may be forged, so the value is checked."""
    kind = key.type.python_type
    if value is None and _nullable(key):
        return None
    try:
        if kind is datetime and isinstance(value, str):
            return _aware(datetime.fromisoformat(value))
        if type(value) is kind and not (kind is int and abs(int(value or 0)) >= 2**63) and "\0" not in str(value):
            return value
    except (ValueError, OverflowError):
        pass
    raise PageTokenInvalid("page_token was not issued by this server.", field="page_token")


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("a naive datetime")
    return value.astimezone(UTC)


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
