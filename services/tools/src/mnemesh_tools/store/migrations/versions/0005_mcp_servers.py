"""Adds MCP servers, the tools that they report, and the runs of those tools."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "mcp_servers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("transport", sa.Text, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("status_message", sa.Text),
        sa.Column("contact_at", UtcDateTime),
        sa.Column("refresh_at", UtcDateTime),
        sa.Column("tool_count", sa.Integer, nullable=False),
        sa.Column("protocol_version", sa.Text),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by_id", sa.Text, nullable=False),
        sa.Column("last_updated_by_id", sa.Text, nullable=False),
        sa.UniqueConstraint("organization_id", "name", name="uq_mcp_servers_organization_name"),
    )
    op.create_index("ix_mcp_servers_organization_created", "mcp_servers", ["organization_id", "created_at", "id"])
    op.create_table(
        "mcp_tools",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("input_schema", sa.Text, nullable=False),
        sa.Column("output_schema", sa.Text),
        sa.Column("annotations", sa.Text),
        sa.Column("json_schema", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reasons", sa.JSON, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("server_id", "name", name="uq_mcp_tools_server_name"),
    )
    op.create_table(
        "mcp_runs",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_mcp_runs_created_at", "mcp_runs", ["created_at"])


def downgrade() -> None:
    for name in ("mcp_runs", "mcp_tools", "mcp_servers"):
        op.drop_table(name)
