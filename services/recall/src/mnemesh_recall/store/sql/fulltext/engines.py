"""The choice of the full-text index by SQL engine."""

from __future__ import annotations

from mnemesh_kit.sql import Database

from mnemesh_recall.store.sql.fulltext.documents import FulltextIndex
from mnemesh_recall.store.sql.fulltext.postgresql import PostgresFulltextIndex
from mnemesh_recall.store.sql.fulltext.sqlite import SqliteFulltextIndex


def fulltext_index(database: Database) -> FulltextIndex:
    """Returns the full-text index of the database's engine."""
    return SqliteFulltextIndex() if database.dialect == "sqlite" else PostgresFulltextIndex()
