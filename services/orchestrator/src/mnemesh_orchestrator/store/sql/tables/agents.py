"""The tables of agents, their imports, tags and links, and of identities."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("hidden", sa.Boolean, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # The creation request of a CREATING agent, or the scope of the deletion of a DELETING one, so that any process can
    # finish it.
    sa.Column("creation", sa.LargeBinary),
    sa.Column("last_stop_reason", sa.Text),
    sa.Column("last_run_completed_at", UtcDateTime),
    sa.Column("last_run_ms", sa.Integer),
    # The corrections of token estimates by model.
    sa.Column("corrections", sa.LargeBinary),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("agents_by_creation", "organization_id", "created_at", "id"),
    sa.Index("agents_by_state", "state"),
)

# The imports of agents: their progress, and the report once they are done.
agent_imports = sa.Table(
    "agent_imports",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("request_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
    sa.Column("is_done", sa.Boolean, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("agent_imports_by_agent", "agent_id"),
)

agent_tags = sa.Table(
    "agent_tags",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Index("agent_tags_by_agent", "agent_id"),
)

# The index of agents by kind and value; see agent_links.py.
agent_links = sa.Table(
    "agent_links",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Index("agent_links_by_agent", "agent_id"),
)

identities = sa.Table(
    "identities",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text, nullable=False),
    sa.Column("identifier_key", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("identities_by_key", "organization_id", "project_id", "identifier_key", unique=True),
    sa.Index("identities_by_creation", "organization_id", "created_at", "id"),
    sa.Index("identities_by_update", "organization_id", "updated_at", "id"),
    sa.Index("identities_by_name", "organization_id", "name", "id"),
)
