"""Copies of migrated databases are what migrations make, and only where nothing was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy as sa
from mnemesh_kit.sql.database import Database


def schema(connection: sa.Connection) -> list[tuple[str, str]]:
    rows = connection.execute(sa.text("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"))
    return [(row.name, row.sql) for row in rows]


async def made(path: Path) -> list[tuple[str, str]]:
    database = Database.open(f"sqlite:///{path}")
    try:
        await database.migrate("mnemesh_blocks")
        return await database.read(schema)
    finally:
        await database.close()


async def test_a_copy_is_what_the_revisions_make(tmp_path: Path) -> None:
    first, second = await made(tmp_path / "first.db"), await made(tmp_path / "second.db")
    assert len(first) > 5
    assert first == second
    assert sorted(path.name for path in tmp_path.glob(".copy-*")) == []


async def test_two_that_migrate_one_file_at_once_both_find_it_whole(tmp_path: Path) -> None:
    await made(tmp_path / "first.db")
    one, other = await asyncio.gather(made(tmp_path / "shared.db"), made(tmp_path / "shared.db"))
    assert one == other == await made(tmp_path / "first.db")


async def test_what_is_there_is_migrated_and_kept(tmp_path: Path) -> None:
    await made(tmp_path / "first.db")
    path = tmp_path / "older.db"
    database = Database.open(f"sqlite:///{path}")
    await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE mine (id INTEGER)")))
    await database.close()
    tables = dict(await made(path))
    assert "mine" in tables
    assert "blocks" in tables


async def test_a_database_in_memory_starts_as_a_copy_of_the_first() -> None:
    schemas = []
    for _ in range(2):
        database = Database.open("sqlite:///:memory:")
        await database.migrate("mnemesh_blocks")
        schemas.append(await database.read(schema))
        await database.write(lambda connection: connection.execute(sa.text("CREATE TABLE mine (id INTEGER)")))
        await database.close()
    assert len(schemas[0]) > 5
    assert schemas[0] == schemas[1]
