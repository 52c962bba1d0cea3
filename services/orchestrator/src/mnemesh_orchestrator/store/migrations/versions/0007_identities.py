"""Identities, and an index of what agents are found by; agents that are there already are entered into it."""

import json

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "identities",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text, nullable=False),
        sa.Column("identifier_key", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("identities_by_key", "identities", ["organization_id", "project_id", "identifier_key"], unique=True)
    op.create_index("identities_by_creation", "identities", ["organization_id", "created_at", "id"])
    op.create_index("identities_by_update", "identities", ["organization_id", "updated_at", "id"])
    op.create_index("identities_by_name", "identities", ["organization_id", "name", "id"])
    links = op.create_table(
        "agent_links",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("agent_links_by_agent", "agent_links", ["agent_id"])
    _enter(links)


def _enter(links: sa.Table) -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT id, organization_id, document FROM agents")).all()
    for agent_id, organization_id, document in rows:
        agent = json.loads(bytes(document))
        origin = agent.get("provenance") or {}
        found = {("tool", tool["tool_id"]) for tool in agent.get("tools", ()) if tool.get("tool_id")}
        found |= {
            (kind, origin[kind])
            for kind in ("project_id", "template_id", "base_template_id", "created_by_id")
            if origin.get(kind)
        }
        for kind, value in sorted(found):
            row = {"organization_id": organization_id, "kind": kind, "value": value, "agent_id": agent_id}
            connection.execute(links.insert(), row)


def downgrade() -> None:
    op.drop_table("agent_links")
    op.drop_table("identities")
