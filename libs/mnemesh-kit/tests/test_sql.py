"""Transactions on both engines: isolation, retries, rollback, snapshots, types, migrations."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
import structlog
from mnemesh_kit.call_context import Principal, as_principal, current_principal, service_context
from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.retries import Backoff
from mnemesh_kit.sql import Database, UtcDateTime, sqlite
from mnemesh_kit.sql.database import TRANSACTIONS
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.timeouts import scaled

metadata = sa.MetaData()
counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Integer, nullable=False),
    sa.Column("changed_at", UtcDateTime),
)


async def _with_tables(database: Database) -> None:
    await database.write(metadata.create_all)


async def test_concurrent_read_then_write_loses_no_update(database: Database) -> None:
    await _with_tables(database)
    await database.write(lambda c: c.execute(counters.insert().values(name="n", value=0)))

    def increment(conn: sa.Connection) -> int:
        value = conn.execute(sa.select(counters.c.value)).scalar_one()
        conn.execute(counters.update().values(value=value + 1))
        return int(value) + 1

    seen = await asyncio.gather(*(database.write(increment) for _ in range(40)))
    assert sorted(seen) == list(range(1, 41))


async def test_of_concurrent_check_then_insert_one_succeeds(database: Database) -> None:
    await _with_tables(database)

    def claim(conn: sa.Connection) -> bool:
        if conn.execute(sa.select(counters.c.name).where(counters.c.name == "x")).first():
            return False
        conn.execute(counters.insert().values(name="x", value=1))
        return True

    assert sum(await asyncio.gather(*(database.write(claim) for _ in range(12)))) == 1


async def test_contended_writes_are_executed_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read and write the same page of an index, but rows of their own."""
    monkeypatch.setattr("mnemesh_kit.sql.database.TURN_SECONDS", scaled(30))
    await _with_tables(database)
    executed: list[str] = []

    def insert(conn: sa.Connection, name: str) -> None:
        executed.append(name)
        conn.execute(sa.select(counters.c.value).where(counters.c.name == name)).first()
        conn.execute(counters.insert().values(name=name, value=1))

    names = [f"n{number}" for number in range(24)]
    await asyncio.gather(*(database.write(partial(insert, name=name), contended=True) for name in names))
    assert sorted(executed) == sorted(names)


async def test_slow_contended_write_does_not_stop_the_others(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemesh_kit.sql.database.TURN_SECONDS", 0.0)
    name = await postgres_server.create_database()
    database = Database.open(postgres_server.url(name))
    began, ends = threading.Event(), threading.Event()

    def hold(conn: sa.Connection) -> None:
        began.set()
        ends.wait(scaled(30))

    try:
        held = asyncio.ensure_future(database.write(hold, contended=True))
        await asyncio.to_thread(began.wait)
        assert await database.write(lambda conn: conn.execute(sa.select(1)).scalar_one(), contended=True) == 1
        assert not held.done()
        ends.set()
        await held
    finally:
        ends.set()
        await database.close()


async def test_write_skew_is_impossible(database: Database) -> None:
    """Of two transactions that each read a row that the other writes, at most one acts on the old state."""
    await _with_tables(database)
    for name in ("a", "b"):
        await database.write(lambda c, name=name: c.execute(counters.insert().values(name=name, value=1)))

    def leave_duty(name: str):  # type: ignore[no-untyped-def]
        def leave(conn: sa.Connection) -> bool:
            on_duty = conn.execute(sa.select(sa.func.sum(counters.c.value))).scalar_one()
            if on_duty < 2:
                return False
            conn.execute(counters.update().where(counters.c.name == name).values(value=0))
            return True

        return leave

    left = await asyncio.gather(database.write(leave_duty("a")), database.write(leave_duty("b")))
    assert sorted(left) == [False, True]


async def test_error_rolls_everything_back(database: Database) -> None:
    await _with_tables(database)

    def fail(conn: sa.Connection) -> None:
        conn.execute(counters.insert().values(name="gone", value=1))
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fail)
    assert await database.read(lambda c: c.execute(sa.select(counters)).all()) == []


async def test_duplicate_is_an_integrity_error(database: Database) -> None:
    await _with_tables(database)
    insert = counters.insert().values(name="n", value=0)
    await database.write(lambda c: c.execute(insert))
    with pytest.raises(sa.exc.IntegrityError):
        await database.write(lambda c: c.execute(insert))


async def test_reads_cannot_write(database: Database) -> None:
    await _with_tables(database)
    with pytest.raises(sa.exc.DBAPIError):
        await database.read(lambda c: c.execute(counters.insert().values(name="n", value=0)))


async def test_reads_without_a_snapshot(database: Database) -> None:
    await _with_tables(database)
    await database.write(lambda c: c.execute(counters.insert().values(name="n", value=3)))
    value = sa.select(counters.c.value)
    assert await database.read(lambda c: c.execute(value).scalar_one(), snapshot=False) == 3
    if database.dialect == "postgresql":
        isolation = sa.text("SHOW transaction_isolation")
        found = [await database.read(lambda c: c.scalar(isolation), snapshot=needed) for needed in (True, False, True)]
        assert found == ["repeatable read", "read committed", "repeatable read"]


async def test_log_that_a_long_read_made_large_is_cut_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "LOG_BYTES", 100_000)
    database, log = Database.open(f"sqlite:///{tmp_path / 'sql.db'}"), tmp_path / "sql.db-wal"
    is_reading, may_end = threading.Event(), threading.Event()

    def read(conn: sa.Connection) -> None:
        conn.execute(sa.select(counters)).all()
        is_reading.set()
        may_end.wait(scaled(20))

    def insert(number: int) -> Callable[[sa.Connection], object]:
        return lambda conn: conn.execute(counters.insert().values(name=f"{number} " + "x" * 50_000, value=number))

    try:
        await _with_tables(database)
        reading = asyncio.create_task(database.read(read))
        await asyncio.to_thread(is_reading.wait)
        for number in range(100):
            await database.write(insert(number))
        assert log.stat().st_size > 4_000_000
        may_end.set()
        await reading
        for number in range(100, 110):  # the log moves to the file, and starts over
            await database.write(insert(number))
        assert log.stat().st_size < 2_000_000
    finally:
        may_end.set()
        await database.close()


async def test_postgres_settings_apply_to_reads_and_writes(postgres_url: str) -> None:
    database = Database.open(postgres_url, postgres_settings={"enable_seqscan": "off"})

    def shown(conn: sa.Connection) -> str:
        return str(conn.scalar(sa.text("SHOW enable_seqscan")))

    try:
        assert [await database.read(shown), await database.write(shown)] == ["off", "off"]
    finally:
        await database.close()


async def test_times_are_returned_as_the_same_instant_in_utc(database: Database) -> None:
    await _with_tables(database)
    there = datetime(2026, 3, 1, 23, 30, 0, 123456, tzinfo=timezone(timedelta(hours=-5)))
    await database.write(lambda c: c.execute(counters.insert().values(name="n", value=0, changed_at=there)))
    stored = await database.read(lambda c: c.execute(sa.select(counters.c.changed_at)).scalar_one())
    assert stored == there
    assert stored.tzinfo is UTC


async def test_principal_is_known_inside_a_transaction(database: Database) -> None:
    me = Principal("org-00000000-0000-4000-8000-000000000007", "user-00000000-0000-4000-8000-000000000007")
    with as_principal(me):
        assert await database.read(lambda _: current_principal()) == me


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a schema of two tables, the second of which came with a revision."""
    name = f"package_{tmp_path.name}"
    versions = tmp_path / name / "store" / "migrations" / "versions"
    versions.mkdir(parents=True)
    for path in (tmp_path / name / "__init__.py", tmp_path / name / "store" / "__init__.py"):
        path.touch()
    (versions / "0001_first.py").write_text("revision, down_revision = '0001', None\n")
    (versions / "0002_second.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = '0002', '0001'\n"
        "def upgrade():\n    op.create_table('second', sa.Column('id', sa.Text, primary_key=True))\n"
    )
    (tmp_path / name / "store" / "tables.py").write_text(
        "import sqlalchemy as sa\nmetadata = sa.MetaData()\n"
        "for name in ('first', 'second'):\n    sa.Table(name, metadata, sa.Column('id', sa.Text, primary_key=True))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


async def older(database: Database, package: str) -> None:
    """Gives the database the schema of the first revision."""
    await database.migrate(package)
    for statement in ("DROP TABLE second", "UPDATE alembic_version SET version_num = '0001'"):
        await database.write(lambda c, statement=statement: c.execute(sa.text(statement)))


async def test_migrations_run_once_when_replicas_start_together(database_url: str, package: str) -> None:
    replicas = [Database.open(database_url) for _ in range(3)]
    await asyncio.gather(*(replica.migrate(package) for replica in replicas))
    await replicas[0].migrate(package)
    names = await replicas[0].read(lambda c: sa.inspect(c).get_table_names())
    assert sorted(names) == ["alembic_version", "first", "second"]
    for replica in replicas:
        await replica.close()


async def test_older_database_is_migrated(database: Database, package: str) -> None:
    await older(database, package)
    await database.migrate(package)
    assert await database.read(lambda c: sa.inspect(c).has_table("second")) is True


async def test_failed_migration_is_rolled_back(database: Database, package: str, tmp_path: Path) -> None:
    await older(database, package)
    second = tmp_path / package / "store" / "migrations" / "versions" / "0002_second.py"
    second.write_text(second.read_text() + "    raise RuntimeError('failed')\n")
    with pytest.raises(RuntimeError):
        await database.migrate(package)
    assert await database.read(lambda c: sa.inspect(c).has_table("second")) is False


async def test_tables_of_another_program_are_not_taken_for_the_own(database: Database, package: str) -> None:
    await database.write(lambda c: c.execute(sa.text("CREATE TABLE second (id TEXT)")))
    with pytest.raises((StartupError, sa.exc.ProgrammingError), match="already exists"):
        await database.migrate(package)
    assert await database.read(lambda c: sa.inspect(c).get_table_names()) == ["second"]


async def test_newer_schema_is_one_line_that_names_the_versions(
    database: Database, package: str, tmp_path: Path
) -> None:
    await database.migrate(package)
    versions = tmp_path / package / "store" / "migrations" / "versions"
    newest = sorted(versions.glob("*.py"))[-1]
    newest.unlink()
    with pytest.raises(StartupError, match=r"newer version: revision 0002, and this version knows 0001") as refused:
        await database.migrate(package)
    assert "\n" not in str(refused.value)


async def test_schema_of_before_the_first_revision_is_one_line_that_says_what_to_do(
    database: Database, package: str
) -> None:
    await database.migrate(package)
    await database.write(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '0000'")))
    with pytest.raises(
        StartupError, match=r"before the first release: revision 0000, .*Use an empty database"
    ) as error:
        await database.migrate(package)
    assert "\n" not in str(error.value)


async def test_start_waits_for_a_server_that_comes(
    postgres_server: PostgresServer, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemesh_kit.sql.database.START_BACKOFF", Backoff(first=0.01, maximum=0.01))
    name = await postgres_server.create_database()
    sockets = tmp_path / "sockets"
    database = Database.open(f"postgresql://postgres@/{name}?host={sockets}")
    with structlog.testing.capture_logs() as logs:
        starting = asyncio.create_task(database.migrate(package))
        async with asyncio.timeout(scaled(30)):
            while not logs:
                await asyncio.sleep(0)
            sockets.symlink_to(postgres_server.directory)
            await starting
    assert {line["event"] for line in logs} == {"database_awaited"}
    assert await database.read(lambda c: sa.inspect(c).has_table("alembic_version"))
    await database.close()
    await postgres_server.drop_database(name)


@pytest.mark.parametrize("wrong", ["user", "database"])
async def test_wrong_name_is_one_line_and_no_reason_to_wait(
    postgres_server: PostgresServer, package: str, wrong: str
) -> None:
    url = postgres_server.url("nothing" if wrong == "database" else "postgres")
    database = Database.open(url.replace("postgres@", "nobody@") if wrong == "user" else url)
    with pytest.raises(StartupError, match=r"cannot be used: .*does not exist"):
        await database.migrate(package)
    await database.close()


async def test_unreachable_database_is_reported_without_its_password(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnemesh_kit.sql.database.START_SECONDS", 0.0)
    for url in (f"sqlite:///{tmp_path}/missing/x.db", f"postgresql://u:secret@/db?host={tmp_path}"):
        database = Database.open(url)
        with pytest.raises(StartupError) as refused:
            await database.migrate(package)
        assert "\n" not in str(refused.value)
        assert "secret" not in str(refused.value)
        await database.close()


def test_malformed_url_is_a_config_error() -> None:
    for url in ("nonsense", "mysql://host/db"):
        with pytest.raises(ConfigError):
            Database.open(url)


async def test_transactions_are_counted_for_the_service_that_begins_them(database: Database) -> None:
    async def use() -> None:
        await database.read(lambda _: None)
        await database.write(lambda _: None)
        await database.write(lambda _: None)

    await asyncio.create_task(use(), context=service_context("shelf"))
    await asyncio.create_task(database.read(lambda _: None), context=service_context("drawer"))
    counts = {name: [TRANSACTIONS[name].value(kind) for kind in ("read", "write")] for name in ("shelf", "drawer")}
    assert counts == {"shelf": [1, 2], "drawer": [1, 0]}
    for name in counts:
        del TRANSACTIONS[name]
