"""Transactions on both engines: isolation, retries, rollback, snapshots, types, migrations."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa
from mnemesh_kit.config import ConfigError, StartupError
from mnemesh_kit.principal import Principal, as_principal, current_principal
from mnemesh_kit.sql import Database, UtcDateTime

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


async def test_concurrent_check_then_insert_lets_one_win(database: Database) -> None:
    await _with_tables(database)

    def claim(conn: sa.Connection) -> bool:
        if conn.execute(sa.select(counters.c.name).where(counters.c.name == "x")).first():
            return False
        conn.execute(counters.insert().values(name="x", value=1))
        return True

    assert sum(await asyncio.gather(*(database.write(claim) for _ in range(12)))) == 1


async def test_write_skew_is_impossible(database: Database) -> None:
    """Two transactions that each read what the other writes cannot both act on the old state."""
    await _with_tables(database)
    for name in ("a", "b"):
        await database.write(lambda c, name=name: c.execute(counters.insert().values(name=name, value=1)))

    def leaver(name: str):  # type: ignore[no-untyped-def]
        def leave(conn: sa.Connection) -> bool:
            on_duty = conn.execute(sa.select(sa.func.sum(counters.c.value))).scalar_one()
            if on_duty < 2:
                return False
            conn.execute(counters.update().where(counters.c.name == name).values(value=0))
            return True

        return leave

    left = await asyncio.gather(database.write(leaver("a")), database.write(leaver("b")))
    assert sorted(left) == [False, True]


async def test_an_error_rolls_everything_back(database: Database) -> None:
    await _with_tables(database)

    def fail(conn: sa.Connection) -> None:
        conn.execute(counters.insert().values(name="gone", value=1))
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fail)
    assert await database.read(lambda c: c.execute(sa.select(counters)).all()) == []


async def test_a_real_duplicate_is_still_an_integrity_error(database: Database) -> None:
    await _with_tables(database)
    insert = counters.insert().values(name="n", value=0)
    await database.write(lambda c: c.execute(insert))
    with pytest.raises(sa.exc.IntegrityError):
        await database.write(lambda c: c.execute(insert))


async def test_reads_cannot_write(database: Database) -> None:
    await _with_tables(database)
    with pytest.raises(sa.exc.DBAPIError):
        await database.read(lambda c: c.execute(counters.insert().values(name="n", value=0)))


async def test_what_connections_are_to_set_holds_in_reads_and_writes(postgres_url: str) -> None:
    database = Database.open(postgres_url, postgres_settings={"enable_seqscan": "off"})

    def shown(conn: sa.Connection) -> str:
        return str(conn.scalar(sa.text("SHOW enable_seqscan")))

    try:
        assert [await database.read(shown), await database.write(shown)] == ["off", "off"]
    finally:
        await database.close()


async def test_times_come_back_as_the_same_instant_in_utc(database: Database) -> None:
    await _with_tables(database)
    there = datetime(2026, 3, 1, 23, 30, 0, 123456, tzinfo=timezone(timedelta(hours=-5)))
    await database.write(lambda c: c.execute(counters.insert().values(name="n", value=0, changed_at=there)))
    stored = await database.read(lambda c: c.execute(sa.select(counters.c.changed_at)).scalar_one())
    assert stored == there
    assert stored.tzinfo is UTC


async def test_the_caller_is_known_inside_a_transaction(database: Database) -> None:
    me = Principal("org-00000000-0000-4000-8000-000000000007", "user-00000000-0000-4000-8000-000000000007")
    with as_principal(me):
        assert await database.read(lambda _: current_principal()) == me


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with two migrations."""
    name = f"room_{tmp_path.name}"
    versions = tmp_path / name / "store" / "migrations" / "versions"
    versions.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    for number, table in ((1, "first"), (2, "second")):
        before = repr(f"{number - 1:04}") if number > 1 else None
        (versions / f"{number:04}_{table}.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision = '{number:04}'\ndown_revision = {before}\n"
            f"def upgrade():\n    op.create_table('{table}', sa.Column('id', sa.Text, primary_key=True))\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


async def test_migrations_run_once_and_replicas_may_start_together(database_url: str, room: str) -> None:
    replicas = [Database.open(database_url) for _ in range(3)]
    await asyncio.gather(*(replica.migrate(room) for replica in replicas))
    await replicas[0].migrate(room)
    names = await replicas[0].read(lambda c: sa.inspect(c).get_table_names())
    assert sorted(names) == ["alembic_version", "first", "second"]
    for replica in replicas:
        await replica.close()


async def test_a_database_behind_the_newest_revision_is_brought_up(
    database: Database, room: str, tmp_path: Path
) -> None:
    second = tmp_path / room / "store" / "migrations" / "versions" / "0002_second.py"
    later = second.rename(tmp_path / "later.py")
    await database.migrate(room)
    assert await database.read(lambda c: sa.inspect(c).has_table("second")) is False
    later.rename(second)
    await database.migrate(room)
    assert await database.read(lambda c: sa.inspect(c).has_table("second")) is True


async def test_a_failed_migration_leaves_nothing_behind(database: Database, room: str, tmp_path: Path) -> None:
    second = tmp_path / room / "store" / "migrations" / "versions" / "0002_second.py"
    second.write_text(second.read_text() + "    raise RuntimeError('half way')\n")
    with pytest.raises(RuntimeError):
        await database.migrate(room)
    assert await database.read(lambda c: sa.inspect(c).get_table_names()) == []


async def test_a_database_that_is_not_there_is_told_in_one_line(tmp_path: Path, room: str) -> None:
    for url in (f"sqlite:///{tmp_path}/missing/x.db", f"postgresql://u:secret@/db?host={tmp_path}"):
        database = Database.open(url)
        with pytest.raises(StartupError) as refusal:
            await database.migrate(room)
        assert "\n" not in str(refusal.value)
        assert "secret" not in str(refusal.value)
        await database.close()


def test_a_url_nobody_can_read_is_a_config_error() -> None:
    for url in ("nonsense", "mysql://host/db"):
        with pytest.raises(ConfigError):
            Database.open(url)
