"""Prepared statements behave like statements that SQLAlchemy executes, on both engines."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.prepared import Prepared, observed

_metadata = sa.MetaData()
_notes = sa.Table(
    "notes",
    _metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("is_open", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("body", sa.LargeBinary),
    sa.Column("created_at", UtcDateTime),
)
_NOW = datetime(2026, 5, 4, 3, 2, 1, 5, tzinfo=UTC)


class _Kind(StrEnum):
    LONG = "long"
    SHORT = "short"


_INSERT = Prepared(_notes.insert())
_BY_KIND = Prepared(
    sa.select(_notes, (sa.func.length(_notes.c.id) + 1).label("longer"))
    .where(_notes.c.kind == sa.bindparam("p_kind"), _notes.c.is_open == sa.true())
    .order_by(_notes.c.id)
    .limit(1)
)
_CLOSE = Prepared(
    _notes.update()
    .where(_notes.c.kind == sa.bindparam("p_kind"))
    .values(is_open=False, created_at=sa.bindparam("new_time", type_=_notes.c.created_at.type))
)


def _row(id_: str, kind: _Kind = _Kind.LONG, **values: Any) -> dict[str, Any]:
    return {"id": id_, "kind": kind, "is_open": True, "body": None, "created_at": None, **values}


@pytest_asyncio.fixture
async def notes(database: Database) -> Database:
    """The database with an empty table."""
    await database.write(_metadata.create_all)
    return database


async def test_values_and_rows_are_converted_by_the_types_of_their_columns(notes: Database) -> None:
    elsewhere = _NOW.astimezone(timezone(timedelta(hours=9)))
    await notes.write(lambda conn: _INSERT.change(conn, _row("a", body=b"\x00x", created_at=elsewhere)))
    prepared = await notes.read(lambda conn: _BY_KIND.first(conn, {"p_kind": _Kind.LONG}))
    executed = await notes.read(lambda conn: conn.execute(_BY_KIND.statement, {"p_kind": _Kind.LONG}).one())
    assert tuple(prepared) == tuple(executed) == ("a", "long", True, b"\x00x", _NOW, 2)
    assert (prepared.id, prepared.is_open, prepared.created_at, prepared.longer) == ("a", True, _NOW, 2)
    assert prepared.is_open is True


async def test_a_query_without_rows_returns_none(notes: Database) -> None:
    assert await notes.read(lambda conn: _BY_KIND.first(conn, {"p_kind": "none"})) is None


async def test_all_rows_of_a_query(notes: Database) -> None:
    query = Prepared(sa.select(_notes.c.id, _notes.c.kind).order_by(_notes.c.id))
    assert await notes.read(lambda conn: query.all(conn, {})) == []
    await notes.write(lambda conn: _INSERT.send_each(conn, [_row("b", _Kind.SHORT), _row("a")]))
    rows = await notes.read(lambda conn: query.all(conn, {}))
    assert [(row.id, row.kind) for row in rows] == [("a", "long"), ("b", "short")]


async def test_changed_rows_are_counted(notes: Database) -> None:
    rows = [_row("a"), _row("b"), _row("c", _Kind.SHORT)]
    await notes.write(lambda conn: _INSERT.send_each(conn, rows))
    close = {"p_kind": _Kind.LONG, "new_time": _NOW}
    assert await notes.write(lambda conn: _CLOSE.change(conn, close)) == 2
    assert await notes.write(lambda conn: _CLOSE.change(conn, close | {"p_kind": "none"})) == 0
    stored = await notes.read(lambda conn: conn.execute(sa.select(_notes).order_by(_notes.c.id)).all())
    assert [(row.is_open, row.created_at) for row in stored] == [(False, _NOW), (False, _NOW), (True, None)]


async def test_a_write_returns_converted_columns(notes: Database) -> None:
    closed = _notes.update().where(_notes.c.kind == sa.bindparam("p_kind")).values(is_open=False, created_at=_NOW)
    close = Prepared(closed.returning(_notes.c.id, _notes.c.is_open, _notes.c.created_at))
    await notes.write(lambda conn: _INSERT.change(conn, _row("a")))
    row = await notes.write(lambda conn: close.first(conn, {"p_kind": _Kind.LONG}))
    assert (row.id, row.is_open, row.created_at) == ("a", False, _NOW)


async def test_text_is_prepared(notes: Database) -> None:
    insert = Prepared(sa.text("INSERT INTO notes (id, kind) VALUES (:id, :kind)"))
    await notes.write(lambda conn: insert.send_each(conn, [{"id": "b", "kind": "x"}, {"kind": "y", "id": "a"}]))
    stored = await notes.read(lambda conn: conn.execute(sa.select(_notes.c.id, _notes.c.kind)).all())
    assert sorted(map(tuple, stored)) == [("a", "y"), ("b", "x")]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_row_ids_of_inserted_rows(notes: Database) -> None:
    ids = await notes.write(lambda conn: [_INSERT.send(conn, _row(id_)).row_id() for id_ in "ab"])
    stored = await notes.read(lambda conn: conn.execute(sa.text("SELECT rowid FROM notes ORDER BY id")).scalars().all())
    assert ids == stored


async def test_errors_are_those_of_sqlalchemy_and_roll_back(notes: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        await notes.write(lambda conn: _INSERT.send_each(conn, [_row("a"), _row("a")]))
    assert await notes.read(lambda conn: conn.execute(sa.select(_notes)).all()) == []


@pytest.mark.parametrize("read", [Prepared.first, Prepared.all])
async def test_error_of_a_later_row_is_that_of_sqlalchemy(notes: Database, read: Callable[..., Any]) -> None:
    numbers = Prepared(sa.text("SELECT abs(n) FROM (SELECT 1 AS n UNION ALL SELECT -9223372036854775807 - 1) AS found"))
    with pytest.raises(sa.exc.DBAPIError):
        await notes.read(lambda conn: read(numbers, conn, {}))


async def test_prepared_statements_are_part_of_their_transaction(notes: Database) -> None:
    def fail(conn: sa.Connection) -> None:
        _INSERT.change(conn, _row("a"))
        assert _BY_KIND.first(conn, {"p_kind": "long"}).id == "a"
        raise LookupError

    with pytest.raises(LookupError):
        await notes.write(fail)
    assert await notes.read(lambda conn: _BY_KIND.first(conn, {"p_kind": "long"})) is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_other_parameters_are_refused(notes: Database) -> None:
    await notes.write(lambda conn: _CLOSE.change(conn, {"p_kind": "long", "new_time": _NOW}))
    for parameters in ({"p_kind": "long"}, {"p_kind": "long", "new_time": _NOW, "id": "a"}):
        with pytest.raises(ValueError, match="the parameters are"):
            await notes.write(lambda conn, wrong=parameters: _CLOSE.change(conn, wrong))
    with pytest.raises(ValueError, match="new_time is missing"):
        await notes.write(lambda conn: Prepared(_CLOSE.statement).change(conn, {"p_kind": "long"}))
    by_ids = Prepared(sa.select(_notes).where(_notes.c.id.in_(sa.bindparam("p_ids", expanding=True))))
    with pytest.raises(ValueError, match="none is a list"):
        await notes.read(lambda conn: by_ids.first(conn, {"p_ids": ["a"]}))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_listener_sees_prepared_statements_that_are_observed(notes: Database) -> None:
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement.split(maxsplit=1)[0])

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        with observed():
            await notes.write(lambda conn: _INSERT.change(conn, _row("a")))
            await notes.write(lambda conn: _BY_KIND.first(conn, {"p_kind": "long"}))
        await notes.write(lambda conn: _INSERT.change(conn, _row("b")))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert seen == ["INSERT", "SELECT"]
