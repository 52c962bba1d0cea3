"""Creates the tables of tools, MCP servers, and locked packages."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None


def upgrade() -> None:
    _create_furnishings()
    _create_mcp_runs()
    _create_mcp_servers()
    _create_audit_entries()
    _create_request_ledger()
    _create_tools()
    _create_mcp_authorizations()
    _create_mcp_package_locks()
    _create_mcp_tools()
    _create_tool_tags()


def _create_furnishings() -> None:
    op.create_table(
        "furnishings",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("release", sa.Text, nullable=False),
    )


def _create_mcp_runs() -> None:
    op.create_table(
        "mcp_runs",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("result", sa.LargeBinary),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_mcp_runs_created_at", "mcp_runs", ["created_at"])


def _create_mcp_servers() -> None:
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


def _create_audit_entries() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("created_at", UtcDateTime, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("resource_ids", sa.Text, nullable=False),
        sa.Column("correlation_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_entries_created_at", "audit_entries", ["created_at"])


def _create_request_ledger() -> None:
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


def _create_tools() -> None:
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
        sa.Column("package_lock", sa.Text),
        sa.Column("default_requires_approval", sa.Boolean),
        sa.Column("enable_parallel_execution", sa.Boolean, nullable=False),
        sa.Column("idempotent", sa.Boolean, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("timeout_seconds", sa.Integer, nullable=False),
        sa.Column("allow_network", sa.Boolean, nullable=False),
        sa.Column("network_hosts", sa.JSON, nullable=False),
        sa.Column("secrets", sa.JSON, nullable=False, server_default="[]"),
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


def _create_mcp_authorizations() -> None:
    op.create_table(
        "mcp_authorizations",
        sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("state_hash", sa.Text, nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("message", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("state_hash"),
    )
    op.create_index(
        "ix_mcp_authorizations_organization_created", "mcp_authorizations", ["organization_id", "created_at"]
    )


def _create_mcp_package_locks() -> None:
    op.create_table(
        "mcp_package_locks",
        sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("ecosystem", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("requirements", sa.Text, nullable=False),
        sa.Column("lock", sa.Text, nullable=False),
    )


def _create_mcp_tools() -> None:
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
        sa.Column("owner_settings", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("server_id", "name", name="uq_mcp_tools_server_name"),
    )


def _create_tool_tags() -> None:
    op.create_table(
        "tool_tags",
        sa.Column("tool_id", sa.Text, sa.ForeignKey("tools.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("tag", sa.Text, nullable=False),
    )
    op.create_index("ix_tool_tags_tag", "tool_tags", ["organization_id", "tag"])
