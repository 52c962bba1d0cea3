"""Approvals: which calls wait, and how they were decided."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_PENDING = {"sqlite_where": sa.text("state = 'pending'"), "postgresql_where": sa.text("state = 'pending'")}


def upgrade() -> None:
    op.create_table(
        "approvals",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("call_ids", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("decisions", sa.LargeBinary),
        sa.Column("decided_by_run_id", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("decided_at", UtcDateTime),
    )
    op.create_index("approvals_by_conversation", "approvals", ["conversation_id", "created_at"])
    op.create_index("approvals_by_agent", "approvals", ["agent_id"])
    op.create_index("approvals_one_pending", "approvals", ["conversation_id"], unique=True, **_PENDING)
    op.create_index("approvals_pending", "approvals", ["created_at"], **_PENDING)


def downgrade() -> None:
    op.drop_table("approvals")
