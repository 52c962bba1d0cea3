"""Adds the word index of each agent.

The documents of existing messages are noted, and indexed in the background when the service starts. Until those of an
agent are, its searches use the full-text index.

Revision ID: 0019
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "word_segments",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("documents", sa.Integer, nullable=False),
        sa.Column("buckets", sa.Integer, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("headers", sa.LargeBinary, nullable=False),
        sa.Column("removed", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_word_segments_agent", "word_segments", ["agent_id", "id"])
    op.create_table(
        "word_postings",
        sa.Column("key", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "word_tail",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("row_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        # Postings are compressed already, and headers hardly compress.
        op.execute("ALTER TABLE word_segments ALTER COLUMN headers SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE word_postings ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute(
        "INSERT INTO word_tail (agent_id, row_id)"
        " SELECT agent_id, row_id FROM messages WHERE search_text IS NOT NULL ORDER BY agent_id, row_id"
    )


def downgrade() -> None:
    for table in ("word_tail", "word_postings", "word_segments"):
        op.drop_table(table)
