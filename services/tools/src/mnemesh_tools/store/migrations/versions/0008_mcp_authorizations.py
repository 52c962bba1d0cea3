"""Adds the authorizations of MCP servers that wait for a person."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mcp_authorizations",
        sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("state_hash", sa.Text, nullable=False, unique=True),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("message", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    op.create_index(
        "ix_mcp_authorizations_organization_created", "mcp_authorizations", ["organization_id", "created_at"]
    )


def downgrade() -> None:
    op.drop_table("mcp_authorizations")
