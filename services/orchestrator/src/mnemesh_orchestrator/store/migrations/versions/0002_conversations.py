"""Conversations beside the default one: their state, what lists sort and search by, and creations under way."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("conversations", sa.Column("state", sa.Text, nullable=False, server_default="active"))
    op.add_column("conversations", sa.Column("summary", sa.Text))
    op.add_column("conversations", sa.Column("creation", sa.LargeBinary))
    op.add_column("conversations", sa.Column("last_message_at", UtcDateTime))
    op.create_index("conversations_by_creation", "conversations", ["organization_id", "created_at", "id"])
    op.create_index(
        "conversations_unfinished",
        "conversations",
        ["created_at"],
        sqlite_where=sa.text("state <> 'active'"),
        postgresql_where=sa.text("state <> 'active'"),
    )


def downgrade() -> None:
    op.drop_index("conversations_unfinished", "conversations")
    op.drop_index("conversations_by_creation", "conversations")
    for column in ("last_message_at", "creation", "summary", "state"):
        op.drop_column("conversations", column)
