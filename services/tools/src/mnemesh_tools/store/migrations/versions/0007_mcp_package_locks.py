"""Adds the locks of the packages of MCP servers, and the settings of tools whose schema is not valid."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("mcp_tools", sa.Column("owner_settings", sa.Text))
    op.create_table(
        "mcp_package_locks",
        sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("ecosystem", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("requirements", sa.Text, nullable=False),
        sa.Column("lock", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("mcp_package_locks")
    op.drop_column("mcp_tools", "owner_settings")
