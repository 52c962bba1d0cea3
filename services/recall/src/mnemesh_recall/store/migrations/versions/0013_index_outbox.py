"""The outbox of the vector index has the form of the library; an index on the messages that the vector index has.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

SEARCHABLE = sa.text("search_text IS NOT NULL")


def upgrade() -> None:
    op.rename_table("index_outbox", "index_outbox_old")
    op.create_table(
        "index_outbox",
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("collection", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("row_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_index_outbox_subject", "index_outbox", ["subject_id"])
    op.execute(
        "INSERT INTO index_outbox (collection, kind, subject_id, created_at)"
        " SELECT CASE WHEN kind = 'memory' THEN 'memories' ELSE 'messages' END,"
        " CASE WHEN kind = 'agent' THEN 'group' ELSE 'record' END, subject_id, created_at"
        " FROM index_outbox_old ORDER BY row_id"
    )
    op.drop_table("index_outbox_old")
    op.execute("DELETE FROM index_holders")
    op.create_index(
        "ix_messages_searchable", "messages", ["row_id"], sqlite_where=SEARCHABLE, postgresql_where=SEARCHABLE
    )


def downgrade() -> None:
    op.drop_index("ix_messages_searchable", "messages")
    op.rename_table("index_outbox", "index_outbox_new")
    op.create_table(
        "index_outbox",
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("row_id"),
    )
    op.execute(
        "INSERT INTO index_outbox (kind, subject_id, created_at)"
        " SELECT CASE WHEN collection = 'memories' THEN 'memory' WHEN kind = 'group' THEN 'agent' ELSE 'message' END,"
        " subject_id, created_at FROM index_outbox_new ORDER BY row_id"
    )
    op.drop_table("index_outbox_new")
