"""The choice of the full-text index by SQL engine."""

from __future__ import annotations

from mnemesh_kit.sql import Database

from mnemesh_recall.store.sql.fulltext.documents import FulltextIndex
from mnemesh_recall.store.sql.fulltext.postgresql import PostgresFulltextIndex
from mnemesh_recall.store.sql.fulltext.sqlite import SqliteFulltextIndex
from mnemesh_recall.store.sql.word_segments.changed import ChangedAgents


def fulltext_index(database: Database, changed: ChangedAgents | None = None) -> FulltextIndex:
    """Returns the full-text index of the database's engine. It notes in `changed` whose documents it changes."""
    changed = changed or ChangedAgents()
    return SqliteFulltextIndex(changed) if database.dialect == "sqlite" else PostgresFulltextIndex(changed)
