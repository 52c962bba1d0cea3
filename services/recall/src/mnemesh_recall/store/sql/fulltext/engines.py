"""Which word index a database has."""

from __future__ import annotations

from mnemesh_kit.sql import Database

from mnemesh_recall.store.sql.fulltext.documents import WordIndex
from mnemesh_recall.store.sql.fulltext.postgresql import PostgresWords
from mnemesh_recall.store.sql.fulltext.sqlite import SqliteWords


def word_index(database: Database) -> WordIndex:
    """The one of its SQL engine."""
    return SqliteWords() if database.dialect == "sqlite" else PostgresWords()
