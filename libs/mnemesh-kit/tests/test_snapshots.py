"""Snapshots of several databases at one instant, while others write to all of them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from mnemesh_kit.config import StartupError
from mnemesh_kit.sql import Database, snapshots
from mnemesh_testkit.databases.postgres import PostgresServer

TABLES = {"one": ["counts"], "two": ["counts"]}
READ = sa.text("SELECT n FROM counts")


@pytest_asyncio.fixture(params=["sqlite", "postgresql", "both"])
async def databases(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """The URLs of two databases, each with a count of 0."""
    urls = {name: f"sqlite:///{tmp_path / f'{name}.db'}" for name in TABLES}
    servers: list[tuple[PostgresServer, str]] = []
    for name in {"sqlite": (), "postgresql": ("one", "two"), "both": ("two",)}[request.param]:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        servers.append((server, await server.create_database()))
        urls[name] = server.url(servers[-1][1])

    def create(conn: sa.Connection) -> None:
        conn.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        conn.execute(sa.text("CREATE TABLE counts (n INTEGER)"))
        conn.execute(sa.text("INSERT INTO counts VALUES (0)"))

    for url in urls.values():
        database = Database.open(url)
        await database.write(create)
        await database.close()
    yield urls
    for server, name in servers:
        await server.drop_database(name)


def add_one(conn: sa.Connection) -> None:
    conn.execute(sa.text("UPDATE counts SET n = n + 1"))


async def test_snapshots_are_of_one_instant(databases: dict[str, str]) -> None:
    """The writer always writes to the first database before the second, so the first is at most one ahead."""
    one, two = (Database.open(url) for url in databases.values())
    stopping = asyncio.Event()
    written = 0

    async def write() -> None:
        nonlocal written
        while not stopping.is_set():
            await one.write(add_one)
            await two.write(add_one)
            written += 1

    def taken() -> tuple[int, int, int, int]:
        with snapshots.snapshots(databases, TABLES) as readers:
            first, second = (reader.execute(READ).scalar_one() for reader in readers.values())
            again, once_more = (reader.execute(READ).scalar_one() for reader in readers.values())
        return first, second, again, once_more

    task = asyncio.create_task(write())
    seen = []
    for _ in range(5):
        before = written
        while written < before + 2:
            await asyncio.sleep(0)
        seen.append((written, *await asyncio.to_thread(taken)))
    stopping.set()
    await task
    await asyncio.gather(one.close(), two.close())
    for before, first, second, again, once_more in seen:
        assert first - second in (0, 1)
        assert second >= before, "a write that was acknowledged before is missing"
        assert (again, once_more) == (first, second), "a later write is visible"


async def test_a_transaction_that_does_not_end_is_an_error(
    databases: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "HOLD_SECONDS", 0.05)
    monkeypatch.setattr(snapshots, "ATTEMPTS", 2)
    holding, done = threading.Event(), threading.Event()

    def hold(conn: sa.Connection) -> None:
        add_one(conn)
        holding.set()
        done.wait()

    two = Database.open(databases["two"])
    writing = asyncio.create_task(two.write(hold))
    await asyncio.to_thread(holding.wait)

    def take() -> None:
        with snapshots.snapshots(databases, TABLES):
            raise AssertionError("there is a snapshot")

    try:
        with pytest.raises(StartupError, match="Try again later"):
            await asyncio.to_thread(take)
    finally:
        done.set()
        await writing
    one = Database.open(databases["one"])
    await one.write(add_one)  # its writers do not wait any more
    await asyncio.gather(one.close(), two.close())


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"The database .*absent\.db does not exist"):
        snapshots.connect(f"sqlite:///{tmp_path / 'absent.db'}")
    assert not list(tmp_path.iterdir())


async def test_a_connection_that_is_lost_in_a_transaction_is_named(postgres_url: str) -> None:
    with snapshots.connect(postgres_url) as lost, snapshots.connect(postgres_url) as other:

        def lose() -> None:
            with snapshots.transaction(lost):
                pid = lost.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
                other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)")
                lost.exec_driver_sql("SELECT 1")

        with pytest.raises(StartupError, match=r"The database postgresql://.* cannot be used"):
            lose()
