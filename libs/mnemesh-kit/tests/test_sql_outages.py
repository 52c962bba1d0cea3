"""Unavailable or full databases: a typed error during the outage, and no restart afterwards."""

import asyncio
import errno
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from mnemesh_kit.sql import Database, DatabaseFull, DatabaseUnavailable
from mnemesh_kit.sql.errors import from_os_error, from_postgresql, from_sqlite
from mnemesh_testkit.timeouts import scaled

metadata = sa.MetaData()
notes = sa.Table("notes", metadata, sa.Column("text", sa.Text))


def _count(conn: sa.Connection) -> int:
    return conn.execute(sa.select(sa.func.count()).select_from(notes)).scalar_one()


async def _terminate(url: str) -> None:
    """Ends every other connection to a database, as a restart of the server does."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


async def test_terminated_connections_are_unavailable_and_are_replaced(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    await database.write(metadata.create_all)
    started = threading.Barrier(4)

    def slow(conn: sa.Connection) -> None:
        conn.execute(notes.insert().values(text="lost"))
        started.wait(scaled(30))
        conn.execute(sa.text("SELECT pg_sleep(30)"))

    writes = [asyncio.ensure_future(database.write(slow)) for _ in range(3)]
    await asyncio.to_thread(started.wait, scaled(30))
    await _terminate(postgres_url)
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(result, DatabaseUnavailable) for result in results), results
    assert await database.read(_count) == 0
    await _terminate(postgres_url)
    with suppress(DatabaseUnavailable):  # the idle connections of the pool are dead, which it may not know yet
        await database.read(_count)
    await database.write(lambda conn: conn.execute(notes.insert().values(text="kept")))
    assert await database.read(_count) == 1
    await database.close()


async def test_unreachable_server_is_unavailable(tmp_path: Path) -> None:
    for url in (f"postgresql://postgres@/x?host={tmp_path}", "postgresql://postgres@127.0.0.1:1/x"):
        database = Database.open(url)
        for access in (database.read, database.write):
            with pytest.raises(DatabaseUnavailable):
                await access(_count)
        await database.close()


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("57P01", DatabaseUnavailable),
        ("57P02", DatabaseUnavailable),
        ("57P03", DatabaseUnavailable),
        ("53300", DatabaseUnavailable),
        ("08006", DatabaseUnavailable),
        ("25006", DatabaseUnavailable),
        ("53100", DatabaseFull),
        ("23505", None),
        ("42P01", None),
    ],
)
def test_postgresql_error_states_are_classified(state: str, kind: type[Exception] | None) -> None:
    raw = psycopg.Error("x")
    raw.sqlstate = state
    for error in (raw, sa.exc.DBAPIError("SELECT 1", {}, raw)):
        known = from_postgresql(error)
        assert known is None if kind is None else isinstance(known, kind)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, DatabaseFull),
        (sqlite3.SQLITE_READONLY_DBMOVED, DatabaseFull),
        (sqlite3.SQLITE_IOERR_WRITE, DatabaseUnavailable),
        (sqlite3.SQLITE_CANTOPEN, DatabaseUnavailable),
        (sqlite3.SQLITE_CONSTRAINT, None),
        (sqlite3.SQLITE_CORRUPT, None),
    ],
)
def test_sqlite_error_codes_are_classified(code: int, kind: type[Exception] | None) -> None:
    raw = sqlite3.OperationalError("x")
    raw.sqlite_errorcode = code
    known = from_sqlite(sa.exc.OperationalError("SELECT 1", {}, raw))
    assert known is None if kind is None else isinstance(known, kind)


def test_full_disk_is_reported_as_full() -> None:
    assert isinstance(from_os_error(OSError(errno.ENOSPC, "No space left on device")), DatabaseFull)
    assert isinstance(from_os_error(OSError(errno.EIO, "Input/output error")), DatabaseUnavailable)


@pytest.mark.parametrize("memory", [False, True])
async def test_full_sqlite_database_can_be_read_and_later_written(tmp_path: Path, *, memory: bool) -> None:
    database = Database.open("sqlite:///:memory:" if memory else f"sqlite:///{tmp_path / 'kit.db'}")
    await database.write(metadata.create_all)
    await database.write(lambda conn: conn.execute(notes.insert().values(text="first")))
    await database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=10"))
    with pytest.raises(DatabaseFull, match="full or read-only"):
        await database.write(lambda conn: conn.execute(notes.insert().values(text="x" * 100_000)))
    assert await database.read(_count) == 1
    await database.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count=10000"))
    await database.write(lambda conn: conn.execute(notes.insert().values(text="x" * 100_000)))
    assert await database.read(_count) == 2
    await database.close()


async def test_read_only_disk_is_reported_as_full(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'kit.db'}")
    await database.write(metadata.create_all)
    await database.write(lambda conn: conn.exec_driver_sql("PRAGMA query_only=ON"))
    with pytest.raises(DatabaseFull):
        await database.write(lambda conn: conn.execute(notes.insert().values(text="x")))
    await database.close()
