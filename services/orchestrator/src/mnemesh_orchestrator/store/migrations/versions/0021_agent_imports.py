"""Adds the imports of agents."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agent_imports",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("is_done", sa.Boolean, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("agent_imports_by_agent", "agent_imports", ["agent_id"])


def downgrade() -> None:
    op.drop_table("agent_imports")
