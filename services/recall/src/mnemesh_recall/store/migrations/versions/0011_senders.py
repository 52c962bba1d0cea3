"""Adds the index on the senders of messages.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    given = sa.text("sender_id IS NOT NULL")
    op.create_index(
        "ix_messages_sender_id", "messages", ["sender_id", "row_id"], sqlite_where=given, postgresql_where=given
    )


def downgrade() -> None:
    op.drop_index("ix_messages_sender_id", "messages")
