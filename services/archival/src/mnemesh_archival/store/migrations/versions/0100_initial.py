"""Creates the tables of archives, passages, changes of embedders, and the outbox of the vector index."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _create_agents()
    _create_archive_agents()
    _create_archive_tags()
    _create_archives()
    _create_index_holders()
    _create_index_outbox()
    _create_left_collections()
    _create_passages()
    _create_reembeddings()
    _create_audit_entries()
    _create_request_ledger()


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("base_revision", sa.BigInteger, nullable=False),
        sa.Column("changed_at", UtcDateTime, nullable=False),
        sa.Column("erased_at", UtcDateTime),
    )


def _create_archive_agents() -> None:
    op.create_table(
        "archive_agents",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("archive_id", sa.Text, primary_key=True),
        sa.Column("attached_at", UtcDateTime, nullable=False),
    )
    op.create_index("archive_agents_by_archive", "archive_agents", ["organization_id", "archive_id", "agent_id"])


def _create_archive_tags() -> None:
    op.create_table(
        "archive_tags",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("archive_id", sa.Text, primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("uses", sa.BigInteger, nullable=False),
    )


def _create_archives() -> None:
    op.create_table(
        "archives",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("name_folded", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("embedder", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("deduplicate", sa.Boolean, nullable=False),
        sa.Column("passage_count", sa.BigInteger, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("changed_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by_id", sa.Text, nullable=False),
        sa.Column("last_updated_by_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("entity_id", sa.Text),
        sa.Column("created_for_agent_id", sa.Text),
        sa.Column("deleted_at", UtcDateTime),
    )
    op.create_index("archives_by_name", "archives", ["organization_id", "name", "id"])
    op.create_index("archives_by_time", "archives", ["organization_id", "created_at", "id"])


def _create_index_holders() -> None:
    op.create_table(
        "index_holders",
        sa.Column("collection", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )


def _create_index_outbox() -> None:
    op.create_table(
        "index_outbox",
        sa.Column("row_id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column("claimed_until", UtcDateTime),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_index_outbox_subject", "index_outbox", ["subject_id"])


def _create_left_collections() -> None:
    op.create_table(
        "left_collections",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("archive_id", sa.Text, primary_key=True),
        sa.Column("embedder", sa.Text, primary_key=True),
        sa.Column("remove_after", UtcDateTime, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_index("ix_left_collections_remove_after", "left_collections", ["remove_after"])


def _create_passages() -> None:
    op.create_table(
        "passages",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("archive_id", sa.Text, nullable=False),
        sa.Column("point_id", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text),
        sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("strand", sa.Text, nullable=False, server_default=""),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("deleted_at", UtcDateTime),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("file_id", sa.Text),
        sa.Column("folder_id", sa.Text),
        sa.Column("file_name", sa.Text),
        sa.Column("chunk_index", sa.Integer),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("metadata", sa.Text),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("continuity", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("speaker", sa.Text, nullable=False, server_default=""),
        sa.Column("asking", sa.SmallInteger, nullable=False, server_default="0"),
        sa.Column("fingerprint", sa.Text, nullable=False, server_default=""),
        sa.Column("given_embedder", sa.Text),
        sa.Column("given_vector", sa.LargeBinary),
        sa.UniqueConstraint("point_id"),
    )
    _create_partial_index("passages_by_agent", "passages", ["organization_id", "agent_id"], "agent_id IS NOT NULL")
    _create_partial_index(
        "passages_by_content", "passages", ["organization_id", "archive_id", "content_hash"], "deleted_at IS NULL"
    )
    _create_partial_index("passages_by_deletion", "passages", ["deleted_at"], "deleted_at IS NOT NULL")
    _create_partial_index(
        "passages_by_file", "passages", ["organization_id", "file_id", "created_at", "id"], "file_id IS NOT NULL"
    )
    _create_partial_index(
        "passages_by_fingerprint", "passages", ["organization_id", "fingerprint", "archive_id"], "deleted_at IS NULL"
    )
    _create_partial_index(
        "passages_by_organization", "passages", ["organization_id", "created_at", "id"], "deleted_at IS NULL"
    )
    op.create_index(
        "passages_by_position",
        "passages",
        [
            "organization_id",
            "archive_id",
            "position",
            "deleted_at",
            "point_id",
            "strand",
            "created_at",
            "continuity",
            "speaker",
            "asking",
        ],
    )
    _create_partial_index(
        "passages_by_time", "passages", ["organization_id", "archive_id", "created_at", "id"], "deleted_at IS NULL"
    )


def _create_reembeddings() -> None:
    op.create_table(
        "reembeddings",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("archive_id", sa.Text, primary_key=True),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("embedder", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_position", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("done", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("started_at", UtcDateTime, nullable=False),
        sa.Column("claimed_until", UtcDateTime, nullable=False),
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


def _create_partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
