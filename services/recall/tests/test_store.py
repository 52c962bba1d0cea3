"""The schema that the migrations create."""

from __future__ import annotations

import sqlalchemy as sa
from mnemesh_kit.sql import Database


async def test_migrations_create_the_declared_tables(database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from mnemesh_recall.store.sql.tables import metadata

    database = Database.open(database_url)
    await database.migrate("mnemesh_recall")

    def differences(conn: sa.Connection) -> list[object]:
        # The full-text index differs by engine and is not declared.
        options = {"include_name": lambda name, *_: not (name or "").startswith(("message_words", "ix_message_words"))}
        return list(compare_metadata(MigrationContext.configure(conn, opts=options), metadata))

    assert await database.read(differences) == []
    await database.close()
