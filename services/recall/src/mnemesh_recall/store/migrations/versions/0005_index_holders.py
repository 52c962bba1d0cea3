"""Adds the lease on the outbox, and an index to find old step records."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates the table of leases and the index on step records."""
    op.create_table(
        "index_holders",
        sa.Column("collection", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("collection", name=op.f("pk_index_holders")),
    )
    op.create_index("ix_step_commits_created", "step_commits", ["created_at"])
