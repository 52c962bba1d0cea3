"""Creates the tables of archives, agents, counters, the ledger of passages, and operations."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("base_revision", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.Column("erased_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "id"),
    )
    op.create_table(
        "archive_agents",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("attached_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "agent_id", "archive_id"),
    )
    op.create_index(
        "archive_agents_by_archive", "archive_agents", ["organization_id", "archive_id", "agent_id"], unique=False
    )
    op.create_table(
        "archive_tags",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "archive_id", "tag"),
    )
    op.create_table(
        "archives",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_folded", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("embedder", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("deduplicate", sa.Boolean(), nullable=False),
        sa.Column("passage_count", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.Column("created_by_id", sa.Text(), nullable=False),
        sa.Column("last_updated_by_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("template_id", sa.Text(), nullable=True),
        sa.Column("base_template_id", sa.Text(), nullable=True),
        sa.Column("deployment_id", sa.Text(), nullable=True),
        sa.Column("entity_id", sa.Text(), nullable=True),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "id"),
    )
    op.create_index("archives_by_name", "archives", ["organization_id", "name", "id"], unique=False)
    op.create_index("archives_by_time", "archives", ["organization_id", "created_at", "id"], unique=False)
    op.create_table(
        "operations",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("passage_id", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("claimed_until", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "id"),
    )
    op.create_index(op.f("ix_operations_claimed_until"), "operations", ["claimed_until"], unique=False)
    op.create_index("operations_by_passage", "operations", ["organization_id", "passage_id"], unique=False)
    op.create_table(
        "passages",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("point_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("deleted_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "id"),
        sa.UniqueConstraint("point_id"),
    )
    op.create_index("passages_by_agent", "passages", ["organization_id", "agent_id"], unique=False)
    op.create_index("passages_by_content", "passages", ["organization_id", "archive_id", "content_hash"], unique=False)
    op.create_table(
        "request_ledger",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("result_ids", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "method", "request_id"),
    )
    op.create_index(op.f("ix_request_ledger_created_at"), "request_ledger", ["created_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_request_ledger_created_at"), table_name="request_ledger")
    op.drop_table("request_ledger")
    op.drop_index("passages_by_content", table_name="passages")
    op.drop_index("passages_by_agent", table_name="passages")
    op.drop_table("passages")
    op.drop_index("operations_by_passage", table_name="operations")
    op.drop_index(op.f("ix_operations_claimed_until"), table_name="operations")
    op.drop_table("operations")
    op.drop_index("archives_by_time", table_name="archives")
    op.drop_index("archives_by_name", table_name="archives")
    op.drop_table("archives")
    op.drop_table("archive_tags")
    op.drop_index("archive_agents_by_archive", table_name="archive_agents")
    op.drop_table("archive_agents")
    op.drop_table("agents")
