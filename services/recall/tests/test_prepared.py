"""Prepared statements write what the same statements write without."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_recall.store.sql.prepared import Prepared

metadata = sa.MetaData()
things = sa.Table(
    "things",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("is_new", sa.Boolean),
    sa.Column("made_at", UtcDateTime),
    sa.Column("count", sa.BigInteger, nullable=False, server_default="7"),
)
INSERT = sa.insert(things)
UPDATE = (
    sa.update(things)
    .where(things.c.name == sa.bindparam("old_name"))
    .values(made_at=sa.bindparam("time", type_=UtcDateTime), count=things.c.count + sa.bindparam("more"))
)
TEXT = sa.text("INSERT INTO things (name, is_new) VALUES (:name, :is_new)")
NOON = datetime(2026, 5, 4, 14, tzinfo=timezone(timedelta(hours=2)))
WRITES: Sequence[tuple[Any, Any]] = (
    (INSERT, {"name": "a", "is_new": True, "made_at": NOON}),
    (INSERT, [{"name": "b", "is_new": None, "made_at": None}, {"made_at": NOON, "name": "c", "is_new": False}]),
    (INSERT, {"name": "d", "count": 1}),
    (UPDATE, {"old_name": "d", "time": NOON, "more": 2}),
    (TEXT, [{"name": "e", "is_new": True}, {"name": "f", "is_new": False}]),
)


async def test_prepared_statements_write_the_same_rows(database_url: str) -> None:
    prepared = {id(statement): Prepared(statement) for statement, _ in WRITES}

    def write(conn: sa.Connection, *, is_prepared: bool) -> list[Any]:
        metadata.create_all(conn)
        for statement, values in WRITES:
            if is_prepared:
                prepared[id(statement)].execute(conn, values)
            else:
                conn.execute(statement, values)
        rows = conn.execute(sa.select(things).order_by(things.c.name)).all()
        metadata.drop_all(conn)
        return [row[1:] for row in rows]

    database = Database.open(database_url)
    expected = await database.write(lambda conn: write(conn, is_prepared=False))
    assert expected[0] == ("a", True, NOON.astimezone(UTC), 7)
    for _ in range(2):
        assert await database.write(lambda conn: write(conn, is_prepared=True)) == expected
    await database.close()


async def test_a_value_that_is_missing_is_an_error(database_url: str) -> None:
    def write(conn: sa.Connection) -> None:
        metadata.create_all(conn)
        Prepared(INSERT).execute(conn, [{"name": "a", "is_new": True}, {"name": "b"}])

    database = Database.open(database_url)
    with pytest.raises((KeyError, sa.exc.StatementError)):
        await database.write(write)
    await database.close()
