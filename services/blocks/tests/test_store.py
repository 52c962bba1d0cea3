"""The migrations of the block store."""

from __future__ import annotations

from pathlib import Path

from mnemesh_kit.sql import Database


async def test_migrations_create_the_declared_tables(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from mnemesh_blocks.store.sql.tables import metadata

    database = Database.open(f"sqlite:///{tmp_path / 'blocks.db'}")
    await database.migrate("mnemesh_blocks")
    assert await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata)) == []
    await database.close()
