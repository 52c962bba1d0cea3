"""Statements that are sent to PostgreSQL before the answers to earlier ones: errors, order, sizes, lost connections."""

import asyncio
import threading
import traceback
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.sql import Database
from mnemesh_kit.sql.prepared import Prepared
from mnemesh_testkit.timeouts import scaled

_metadata = sa.MetaData()
_notes = sa.Table("notes", _metadata, sa.Column("id", sa.Text, primary_key=True), sa.Column("text", sa.Text))
_INSERT = Prepared(_notes.insert())
_TEXT = Prepared(sa.select(_notes.c.text).where(_notes.c.id == sa.bindparam("p_id")))
_RENAME = Prepared(_notes.update().where(_notes.c.id == sa.bindparam("p_id")).values(text=sa.bindparam("new_text")))
_ECHO = Prepared(sa.select(sa.literal("echo").label("kind"), sa.bindparam("text", type_=sa.Text).label("text")))
_WRONG = Prepared(sa.text("INSERT INTO missing (id) VALUES (:id)"))
_PID = Prepared(sa.select(sa.func.pg_backend_pid().label("pid")))


def _row(id_: str) -> dict[str, str]:
    return {"id": id_, "text": f"text of {id_}"}


def _texts(conn: sa.Connection) -> list[str]:
    return list(conn.execute(sa.select(_notes.c.text).order_by(_notes.c.id)).scalars())


pytestmark = pytest.mark.parametrize(
    "database_url", ["postgresql", pytest.param("pgbouncer", marks=pytest.mark.full)], indirect=True
)


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A database with one connection, directly and through a pooler."""
    opened = Database.open(database_url, pool_size=1)
    await opened.write(_metadata.create_all)
    yield opened
    await opened.close()


async def test_answers_are_read_in_any_order_and_beside_statements_of_sqlalchemy(database: Database) -> None:
    def write(conn: sa.Connection) -> list[Any]:
        _INSERT.send_each(conn, [_row("a"), _row("b")])
        first, second = (_TEXT.send(conn, {"p_id": id_}) for id_ in "ab")
        renamed = _RENAME.send(conn, {"p_id": "a", "new_text": "new"})
        present = _texts(conn)
        return [second.first().text, first.first().text, renamed.changed(), present, _TEXT.all(conn, {"p_id": "c"})]

    assert await database.write(write) == ["text of b", "text of a", 1, ["new", "text of b"], []]


async def test_error_of_a_sent_statement_is_raised_by_the_commit_and_rolls_back(database: Database) -> None:
    with pytest.raises(sa.exc.IntegrityError):
        await database.write(lambda conn: _INSERT.send_each(conn, [_row("a"), _row("b"), _row("a"), _row("c")]))
    assert await database.read(_texts) == []
    await database.write(lambda conn: _INSERT.send(conn, _row("a")))
    assert await database.read(_texts) == ["text of a"]


async def test_error_does_not_hide_earlier_answers(database: Database) -> None:
    def write(conn: sa.Connection) -> None:
        missing = _RENAME.send(conn, {"p_id": "x", "new_text": "new"})
        _WRONG.send(conn, {"id": "x"})
        later = _TEXT.send(conn, {"p_id": "x"})
        assert missing.changed() == 0
        later.first()

    with pytest.raises(sa.exc.ProgrammingError, match="missing"):
        await database.write(write)


async def test_each_answer_that_is_missing_has_the_first_error(database: Database) -> None:
    def write(conn: sa.Connection) -> None:
        wrong, skipped = _WRONG.send(conn, {"id": "x"}), _TEXT.send(conn, {"p_id": "x"})
        for ask in (lambda: _texts(conn), skipped.first, wrong.changed):
            with pytest.raises(sa.exc.ProgrammingError, match="missing"):
                ask()
        wrong.changed()

    with pytest.raises(sa.exc.ProgrammingError, match="missing"):
        await database.write(write)


async def test_statements_that_were_not_prepared_because_of_an_error_are_prepared_later(database: Database) -> None:
    def fail(conn: sa.Connection) -> None:
        _WRONG.send(conn, {"id": "x"})
        _INSERT.send(conn, _row("a"))
        _RENAME.send(conn, {"p_id": "a", "new_text": "new"})

    for _ in range(2):
        with pytest.raises(sa.exc.ProgrammingError):
            await database.write(fail)
        await database.read(lambda conn: _ECHO.first(conn, {"text": "x"}))
    await database.write(lambda conn: _INSERT.send(conn, _row("a")))
    await database.write(lambda conn: _RENAME.send(conn, {"p_id": "a", "new_text": "new"}))
    assert await database.read(_texts) == ["new"]


async def test_large_statements_and_answers_do_not_wait_for_each_other(database: Database) -> None:
    text = "x" * 200_000

    def read(conn: sa.Connection) -> int:
        answers = [_ECHO.send(conn, {"text": text}) for _ in range(100)]
        return sum(len(answer.first().text) for answer in answers)

    async with asyncio.timeout(scaled(60)):
        assert await database.read(read) == 20_000_000


async def test_cancelled_caller_leaves_the_connection_usable(database: Database) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def write(conn: sa.Connection) -> None:
        _INSERT.change(conn, _row("a"))
        has_begun.set()
        may_end.wait(scaled(30))

    writing = asyncio.create_task(database.write(write))
    await asyncio.to_thread(has_begun.wait)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    may_end.set()
    assert await database.read(_texts) == ["text of a"]


async def test_idle_connection_that_was_ended_is_replaced_before_a_write(database: Database, database_url: str) -> None:
    pid = (await database.read(lambda conn: _PID.first(conn, {}))).pid
    connected = psycopg.AsyncConnection.connect(database_url, autocommit=True, prepare_threshold=None)
    async with await connected as operator:
        await operator.execute("SELECT pg_terminate_backend(%s) WHERE %s <> pg_backend_pid()", [pid, pid])
        left = "SELECT pid FROM pg_stat_activity WHERE pid = %s AND pid <> pg_backend_pid()"
        while await (await operator.execute(left, [pid])).fetchone() is not None:
            pass
    await database.write(lambda conn: _INSERT.send(conn, _row("a")))
    assert await database.read(_texts) == ["text of a"]


_COUNT = Prepared(sa.text("SELECT CAST(:text AS INTEGER)"))
_PLAIN_COUNT = sa.text("SELECT CAST(CAST(:text AS TEXT) AS INTEGER)")
_SECRET = "of a user"


@pytest.mark.parametrize("is_sent", [True, False], ids=["pipelined", "by SQLAlchemy"])
async def test_errors_show_no_values(database: Database, *, is_sent: bool) -> None:
    def insert(conn: sa.Connection) -> None:
        if is_sent:
            _INSERT.send(conn, _row(_SECRET))
        else:
            conn.execute(_notes.insert(), _row(_SECRET))

    def convert(conn: sa.Connection) -> None:
        values = {"text": _SECRET}
        if is_sent:
            _COUNT.send(conn, values)
        else:
            conn.execute(_PLAIN_COUNT, values)

    await database.write(insert)
    for write, error in ((insert, sa.exc.IntegrityError), (convert, sa.exc.DataError)):
        with pytest.raises(error) as caught:
            await database.write(write)
        assert _SECRET not in "".join(traceback.format_exception(caught.value))
