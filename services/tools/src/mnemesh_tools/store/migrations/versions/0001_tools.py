"""Creates the tables of tools, tags and idempotency keys."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tools",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("source_code", sa.Text),
        sa.Column("source_type", sa.Text, nullable=False),
        sa.Column("json_schema", sa.Text, nullable=False),
        sa.Column("args_json_schema", sa.Text),
        sa.Column("return_char_limit", sa.Integer, nullable=False),
        sa.Column("pip_requirements", sa.JSON, nullable=False),
        sa.Column("npm_requirements", sa.JSON, nullable=False),
        sa.Column("default_requires_approval", sa.Boolean),
        sa.Column("enable_parallel_execution", sa.Boolean, nullable=False),
        sa.Column("idempotent", sa.Boolean, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("timeout_seconds", sa.Integer, nullable=False),
        sa.Column("allow_network", sa.Boolean, nullable=False),
        sa.Column("mcp_server_id", sa.Text),
        sa.Column("mcp_tool_name", sa.Text),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("entity_id", sa.Text),
        sa.Column("search_text", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by_id", sa.Text, nullable=False),
        sa.Column("last_updated_by_id", sa.Text, nullable=False),
        sa.UniqueConstraint("organization_id", "name", name="uq_tools_organization_name"),
    )
    op.create_index("ix_tools_organization_created", "tools", ["organization_id", "created_at", "id"])
    op.create_index("ix_tools_organization_updated", "tools", ["organization_id", "updated_at", "id"])
    op.create_table(
        "tool_tags",
        sa.Column("tool_id", sa.Text, sa.ForeignKey("tools.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("tag", sa.Text, nullable=False),
    )
    op.create_index("ix_tool_tags_tag", "tool_tags", ["organization_id", "tag"])
    op.create_table(
        "request_ledger",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("method", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("result_ids", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_request_ledger_created_at", "request_ledger", ["created_at"])
