"""Adds episodes and facts, with their links and terms."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "episodes",
        *_shared(),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("turn_ids", sa.Text(), nullable=False),
        sa.Column("started_at", UtcDateTime, nullable=True),
        sa.Column("ended_at", UtcDateTime, nullable=True),
        sa.PrimaryKeyConstraint("row_id"),
    )
    op.create_table(
        "facts",
        *_shared(),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("text_key", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=True),
        sa.Column("valid_from", UtcDateTime, nullable=True),
        sa.Column("invalid_at", UtcDateTime, nullable=True),
        sa.Column("first_invalid_at", UtcDateTime, nullable=True),
        sa.Column("closed_at", UtcDateTime, nullable=True),
        sa.Column("superseded_by_id", sa.Text(), nullable=True),
        sa.Column("supersedes_id", sa.Text(), nullable=True),
        sa.Column("invalid_reason", sa.Text(), nullable=True),
        sa.Column("invalid_source", sa.Text(), nullable=True),
        sa.Column("chain_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("row_id"),
    )
    for table in ("episodes", "facts"):
        op.create_index(f"ux_{table}_id", table, ["id"], unique=True)
        op.create_index(f"ix_{table}_scope", table, ["organization_id", "scope_kind", "scope_id", "created_at"])
        op.create_index(f"ix_{table}_owner", table, ["owner_agent_id"])
    op.create_index("ix_facts_text", "facts", ["organization_id", "scope_kind", "scope_id", "text_key"])
    op.create_index("ix_facts_chain", "facts", ["chain_id"])
    op.create_table(
        "memory_links",
        sa.Column("memory_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("memory_id", "kind", "value"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_memory_links_value", "memory_links", ["kind", "value"])
    op.create_table(
        "memory_terms",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("term", sa.Text(), nullable=False),
        sa.Column("scope_key", sa.Text(), nullable=False),
        sa.Column("memory_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "kind", "term", "scope_key", "memory_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_memory_terms_memory", "memory_terms", ["memory_id"])


def downgrade() -> None:
    for table in ("memory_terms", "memory_links", "facts", "episodes"):
        op.drop_table(table)


def _shared() -> list[sa.Column]:
    return [
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("owner_agent_id", sa.Text(), nullable=True),
        sa.Column("imported_id", sa.Text(), nullable=True),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("salience", sa.Double(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("extra", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    ]
