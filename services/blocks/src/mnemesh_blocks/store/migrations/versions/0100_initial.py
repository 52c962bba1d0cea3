"""Creates the tables of blocks, their revisions, and which agents hold them."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None


def upgrade() -> None:
    _create_blocks()
    _create_core_memories()
    _create_audit_entries()
    _create_request_ledger()
    _create_block_identities()
    _create_block_revisions()
    _create_block_tags()
    _create_holdings()


def _create_blocks() -> None:
    op.create_table(
        "blocks",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("char_limit", sa.Integer, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("read_only", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("content_revision", sa.BigInteger, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("identity_ids", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("hidden", sa.Boolean, nullable=False),
        sa.Column("is_template", sa.Boolean, nullable=False),
        sa.Column("template_name", sa.Text),
        sa.Column("preserve_on_migration", sa.Boolean, nullable=False),
        sa.Column("created_for_agent_id", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by_id", sa.Text, nullable=False),
        sa.Column("last_updated_by_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("entity_id", sa.Text),
    )
    op.create_index("blocks_by_create_time", "blocks", ["organization_id", "created_at", "id"])
    op.create_index("blocks_by_label", "blocks", ["organization_id", "label", "id"])
    op.create_index("blocks_by_update_time", "blocks", ["organization_id", "updated_at", "id"])


def _create_core_memories() -> None:
    op.create_table(
        "core_memories",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("next_position", sa.BigInteger, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("erased_at", UtcDateTime),
        sa.Column("conversation_of", sa.Text),
        sa.Column("link_id", sa.Text),
    )
    _create_partial_index(
        "core_memories_by_link", "core_memories", ["organization_id", "link_id"], "link_id IS NOT NULL"
    )
    _create_partial_index(
        "core_memories_of_conversations",
        "core_memories",
        ["organization_id", "conversation_of"],
        "conversation_of IS NOT NULL",
    )


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


def _create_block_identities() -> None:
    op.create_table(
        "block_identities",
        sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("identity_id", sa.Text, primary_key=True),
    )
    op.create_index("ix_block_identities_identity_id", "block_identities", ["identity_id"])


def _create_block_revisions() -> None:
    op.create_table(
        "block_revisions",
        sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("parent", sa.BigInteger),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("char_limit", sa.Integer, nullable=False),
        sa.Column("read_only", sa.Boolean, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("tool_call_id", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("subject_id", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("block_revisions_by_parent", "block_revisions", ["block_id", "parent"])


def _create_block_tags() -> None:
    op.create_table(
        "block_tags",
        sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
    )
    op.create_index("ix_block_tags_tag", "block_tags", ["tag"])


def _create_holdings() -> None:
    op.create_table(
        "holdings",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("organization_id", "agent_id", "label", name="holdings_label_is_unique"),
    )
    op.create_index("ix_holdings_block_id", "holdings", ["block_id"])


def _create_partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
