"""Pages of selects: keyset conditions on a key column and the id.

Rows are ordered by the key and then by id, so the order is total. Rows whose key is NULL come last in both directions.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from mnemesh_kit.errors import NotFound, PageTokenInvalid
from mnemesh_kit.paging import Cursor, Page, PageQuery, Scalar


def paginate(
    conn: sa.Connection,
    stmt: sa.Select[Any],
    query: PageQuery,
    *,
    key: sa.ColumnElement[Any],
    id: sa.ColumnElement[str],  # noqa: A002  (it is the id column)
    scope: sa.ColumnElement[bool],
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

    Returns:
        The rows of the page, in order. It ends before their values exceed the largest size of the query.

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
    rows: list[sa.Row[Any]] = []
    size, more = 0, False
    with conn.execute(paged.order_by(*order).limit(query.limit + 1)) as result:
        for row in result:
            if query.max_bytes is not None:
                size += _row_bytes(row)
            if rows and (len(rows) == query.limit or (query.max_bytes is not None and size > query.max_bytes)):
                more = True
                break
            rows.append(row)
    return Page(tuple(rows), tuple(Cursor(_scalar(row._page_key), row._page_id) for row in rows), more)


def _row_bytes(row: sa.Row[Any]) -> int:
    return sum(map(_value_bytes, row))


def _value_bytes(value: Any) -> int:
    """Returns about the size of a value of a column: of texts, bytes, and JSON."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(len(str(key)) + _value_bytes(item) for key, item in value.items())
    return sum(map(_value_bytes, value)) if isinstance(value, list | tuple) else 8


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


def matching(wanted: Iterable[tuple[sa.ColumnElement[Any], object]]) -> list[sa.ColumnElement[bool]]:
    """Returns the conditions of a filter: a column has the value, or one of the values of a sequence.

    A column whose value is None or an empty sequence is not filtered.
    """
    conditions: list[sa.ColumnElement[bool]] = []
    for column, value in wanted:
        if isinstance(value, Sequence) and not isinstance(value, str):
            if value:
                conditions.append(column.in_(value))
        elif value is not None:
            conditions.append(column == value)
    return conditions
