"""Replaces the full-text index by one with the questions of neighbours, their ids, and the fingerprint of each text.

The service fills the index when it starts.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_NEW_SQLITE = """
    CREATE VIRTUAL TABLE message_words USING fts5(
        scope, body, asked, beside, around, about, before_id UNINDEXED, after_id UNINDEXED, ends_in_question UNINDEXED,
        tokenize = "unicode61 remove_diacritics 0")
"""
_OLD_SQLITE = """
    CREATE VIRTUAL TABLE message_words
    USING fts5(scope, body, beside, around, about, tokenize = "unicode61 remove_diacritics 0")
"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE message_words")
        op.execute(_NEW_SQLITE)
        return
    op.execute("TRUNCATE message_words")
    op.execute(
        "ALTER TABLE message_words ADD COLUMN asked TEXT NOT NULL, ADD COLUMN before_id TEXT, ADD COLUMN after_id TEXT,"
        " ADD COLUMN ends_in_question BOOLEAN NOT NULL"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE message_words")
        op.execute(_OLD_SQLITE)
        return
    op.execute("TRUNCATE message_words")
    op.execute(
        "ALTER TABLE message_words DROP COLUMN asked, DROP COLUMN before_id, DROP COLUMN after_id,"
        " DROP COLUMN ends_in_question"
    )
