"""The tables of the tools service, and the conversion of the rows of tools."""

import json
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.audit import audit_table
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import UtcDateTime
from mnemesh_kit.sql.rows import Rows

from mnemesh_tools.model.tools import Tool, ToolSpec

metadata: Final = sa.MetaData()

tools: Final = sa.Table(
    "tools",
    metadata,
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
    sa.Column("pip_requirements", sa.Text, nullable=False),
    sa.Column("npm_requirements", sa.Text, nullable=False),
    sa.Column("package_lock", sa.Text),
    sa.Column("default_requires_approval", sa.Boolean),
    sa.Column("enable_parallel_execution", sa.Boolean, nullable=False),
    sa.Column("idempotent", sa.Boolean, nullable=False),
    sa.Column("metadata", sa.Text),
    sa.Column("timeout_seconds", sa.Integer, nullable=False),
    sa.Column("allow_network", sa.Boolean, nullable=False),
    sa.Column("network_hosts", sa.Text, nullable=False),
    # The names of the environment variables with their encrypted values and times, as JSON.
    sa.Column("secrets", sa.Text, nullable=False),
    sa.Column("mcp_server_id", sa.Text),
    sa.Column("mcp_tool_name", sa.Text),
    sa.Column("project_id", sa.Text),
    sa.Column("template_id", sa.Text),
    sa.Column("base_template_id", sa.Text),
    sa.Column("deployment_id", sa.Text),
    sa.Column("entity_id", sa.Text),
    # The name and the description, case-folded, so that searches give the same result on every engine.
    sa.Column("search_text", sa.Text, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("created_by_id", sa.Text, nullable=False),
    sa.Column("last_updated_by_id", sa.Text, nullable=False),
    sa.UniqueConstraint("organization_id", "name", name="uq_tools_organization_name"),
    sa.Index("ix_tools_organization_created", "organization_id", "created_at", "id"),
    sa.Index("ix_tools_organization_updated", "organization_id", "updated_at", "id"),
)

tool_tags: Final = sa.Table(
    "tool_tags",
    metadata,
    sa.Column("tool_id", sa.Text, sa.ForeignKey("tools.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("tag", sa.Text, nullable=False),
    sa.Index("ix_tool_tags_tag", "organization_id", "tag"),
)

mcp_servers: Final = sa.Table(
    "mcp_servers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("transport", sa.Text, nullable=False),
    # URL, command, arguments, and the names of secrets with their sealed values, as JSON.
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("metadata", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("message", sa.Text),
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
    sa.Index("ix_mcp_servers_organization_created", "organization_id", "created_at", "id"),
)

# The tools that servers reported. Those that models can call have a row of the same id in `tools`.
mcp_tools: Final = sa.Table(
    "mcp_tools",
    metadata,
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
    sa.Column("reasons", sa.Text, nullable=False),
    # The definition of a tool as its owner left it, as JSON, while the schema is not valid and the tool has none.
    sa.Column("owner_settings", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.UniqueConstraint("server_id", "name", name="uq_mcp_tools_server_name"),
)

# The exact versions of the packages of programs. A lock belongs to the requirements that it was resolved from.
mcp_package_locks: Final = sa.Table(
    "mcp_package_locks",
    metadata,
    sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("ecosystem", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("requirements", sa.Text, nullable=False),
    sa.Column("lock", sa.Text, nullable=False),
)

# The last authorization of each server that has begun, until it expires.
mcp_authorizations: Final = sa.Table(
    "mcp_authorizations",
    metadata,
    sa.Column("server_id", sa.Text, sa.ForeignKey("mcp_servers.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("subject_id", sa.Text, nullable=False),
    sa.Column("state_hash", sa.Text, nullable=False, unique=True),
    # What the exchange of the code needs, encrypted.
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("message", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Index("ix_mcp_authorizations_organization_created", "organization_id", "created_at"),
)

# The runs of tools that have a request id.
mcp_runs: Final = sa.Table(
    "mcp_runs",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("result", sa.LargeBinary),
    sa.Column("created_at", UtcDateTime, nullable=False, index=True),
)

# The release whose built-in tools each organization has.
builtin_releases: Final = sa.Table(
    "furnishings",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("release", sa.Text, nullable=False),
)

request_ledger: Final = ledger_table(metadata)
audit_entries: Final = audit_table(metadata)


_TOOLS: Final = Rows(tools, Tool)
_SPECS: Final = Rows(tools, ToolSpec)


def tool_to_row(tool: Tool) -> dict[str, Any]:
    """Returns the column values of a tool. Its tags are rows of `tool_tags`.

    Raises:
        ValueError: the value of an environment variable is not encrypted.
    """
    spec = tool.spec
    for secret in spec.secrets:
        if secret.value is not None or secret.stored is None or secret.stored.sealed is None:
            raise ValueError(f"The value of {secret.name} is not encrypted.")
    described = spec.description or json.loads(spec.json_schema).get("description", "")
    return _TOOLS.to_row(tool, **_SPECS.to_row(spec), search_text=f"{spec.name}\n{described}".casefold())


def tool_from_row(row: sa.Row[Any], tags: tuple[str, ...]) -> Tool:
    """Returns the tool of a row of `tools`, with these tags."""
    return _TOOLS.from_row(row, spec=_SPECS.from_row(row, tags=tags))
