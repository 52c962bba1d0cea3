"""Adds the progress of extractions of facts, and what they use per day."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memory_extractions",
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("turns", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("due_at", UtcDateTime),
        sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("claim_owner", sa.Text),
        sa.Column("claim_expires_at", UtcDateTime),
        sa.Column("result", sa.LargeBinary),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    )
    is_due = sa.text("due_at IS NOT NULL")
    op.create_index(
        "memory_extractions_due", "memory_extractions", ["due_at"], sqlite_where=is_due, postgresql_where=is_due
    )
    op.create_table(
        "extraction_usage",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("day", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("calls", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("extraction_usage")
    op.drop_table("memory_extractions")
