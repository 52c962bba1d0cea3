"""What the migrations make."""

from __future__ import annotations

from pathlib import Path

from mnemesh_kit.sql import Database


async def test_the_migrations_make_the_tables_that_the_code_declares(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from mnemesh_blocks.store.sql.tables import metadata

    database = Database.open(f"sqlite:///{tmp_path / 'blocks.db'}")
    await database.migrate("mnemesh_blocks")
    assert await database.read(lambda conn: compare_metadata(MigrationContext.configure(conn), metadata)) == []
    await database.close()
