"""Template databases equal migrated ones, and only empty databases are filled from them."""

import asyncio
from pathlib import Path

import sqlalchemy as sa
from mnemesh_kit.sql.database import Database
from mnemesh_testkit.databases.postgres import PostgresServer


def schema(connection: sa.Connection) -> list[tuple[str, str]]:
    rows = connection.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"))
    return [(row.name, row.sql) for row in rows]


async def migrated(path: Path) -> list[tuple[str, str]]:
    database = Database.open(f"sqlite:///{path}")
    try:
        await database.migrate("mnemesh_blocks")
        return await database.read(schema)
    finally:
        await database.close()


async def test_copy_equals_a_migrated_database(tmp_path: Path) -> None:
    first, second = await migrated(tmp_path / "first.db"), await migrated(tmp_path / "second.db")
    assert len(first) > 5
    assert first == second
    assert sorted(path.name for path in tmp_path.glob(".copy-*")) == []


async def test_concurrent_migrations_of_one_file_both_succeed(tmp_path: Path) -> None:
    await migrated(tmp_path / "first.db")
    one, other = await asyncio.gather(migrated(tmp_path / "shared.db"), migrated(tmp_path / "shared.db"))
    assert one == other == await migrated(tmp_path / "first.db")


async def test_existing_data_is_migrated_and_kept(tmp_path: Path) -> None:
    await migrated(tmp_path / "first.db")
    path = tmp_path / "older.db"
    database = Database.open(f"sqlite:///{path}")
    await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE mine (id INTEGER)")))
    await database.close()
    tables = dict(await migrated(path))
    assert "mine" in tables
    assert "blocks" in tables


async def test_database_in_memory_starts_as_a_copy() -> None:
    schemas = []
    for _ in range(2):
        database = Database.open("sqlite:///:memory:")
        await database.migrate("mnemesh_blocks")
        schemas.append(await database.read(schema))
        await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE mine (id INTEGER)")))
        await database.close()
    assert len(schemas[0]) > 5
    assert schemas[0] == schemas[1]


async def test_postgresql_database_starts_as_a_copy(postgres_server: PostgresServer) -> None:
    tables = []
    for _ in range(2):
        name = await postgres_server.create_database()
        database = Database.open(postgres_server.url(name))
        await database.migrate("mnemesh_blocks")
        await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE mine (id INTEGER)")))
        await database.migrate("mnemesh_blocks")
        tables.append(await database.read(lambda connection: sa.inspect(connection).get_table_names()))
        await database.close()
        await postgres_server.drop_database(name)
    assert {"blocks", "mine"} < set(tables[0])
    assert sorted(tables[0]) == sorted(tables[1])
