"""Creates the tables of folders, files with their contents and texts, and what agents have open."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None


def upgrade() -> None:
    _create_agent_files()
    _create_agent_folders()
    _create_agents()
    _create_blobs()
    _create_file_passages()
    _create_files()
    _create_folders()
    _create_removals()
    _create_audit_entries()
    _create_request_ledger()
    _create_segments()
    _create_upload_parts()
    _create_uploads()


def _create_agent_files() -> None:
    op.create_table(
        "agent_files",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("file_id", sa.Text, primary_key=True),
        sa.Column("folder_id", sa.Text, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("has_window", sa.Boolean, nullable=False),
        sa.Column("start_line", sa.Integer),
        sa.Column("end_line", sa.Integer),
        sa.Column("used", sa.BigInteger, nullable=False),
        sa.Column("used_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("agent_files_by_file", "agent_files", ["organization_id", "file_id"])


def _create_agent_folders() -> None:
    op.create_table(
        "agent_folders",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("folder_id", sa.Text, primary_key=True),
        sa.Column("attached_at", UtcDateTime, nullable=False),
        sa.Column("opens_files", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.create_index("agent_folders_by_folder", "agent_folders", ["organization_id", "folder_id", "agent_id"])


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("base_revision", sa.BigInteger, nullable=False),
        sa.Column("changed_at", UtcDateTime, nullable=False),
        sa.Column("uses", sa.BigInteger, nullable=False),
        sa.Column("max_files_open", sa.Integer),
        sa.Column("view_char_limit", sa.Integer),
        sa.Column("announced", sa.Boolean, nullable=False),
        sa.Column("announce_at", UtcDateTime),
        sa.Column("erased_at", UtcDateTime),
    )
    _create_partial_index("agents_by_announcement", "agents", ["announce_at"], "announce_at IS NOT NULL")


def _create_blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.Boolean, nullable=False),
        sa.Column("check_at", UtcDateTime),
        sa.Column("removing_at", UtcDateTime),
    )
    _create_partial_index("blobs_by_check", "blobs", ["check_at"], "check_at IS NOT NULL")
    _create_partial_index("blobs_by_content", "blobs", ["organization_id", "sha256"], "removing_at IS NULL")


def _create_file_passages() -> None:
    op.create_table(
        "file_passages",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("file_id", sa.Text, primary_key=True),
        sa.Column("text_id", sa.Text, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("passage_id", sa.Text, nullable=False),
        sa.Column("text_hash", sa.Text, nullable=False),
        sa.Column("embedded", sa.Boolean, nullable=False),
        sa.Column("start_line", sa.Integer, nullable=False),
        sa.Column("end_line", sa.Integer, nullable=False),
    )
    op.create_index("file_passages_by_passage", "file_passages", ["organization_id", "passage_id"])


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("folder_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("names_folded", sa.Text, nullable=False),
        sa.Column("original_name", sa.Text, nullable=False),
        sa.Column("media_type", sa.Text, nullable=False),
        sa.Column("media_type_given", sa.Boolean, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("blob_id", sa.Text),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("error_message", sa.Text),
        sa.Column("text_id", sa.Text),
        sa.Column("searchable", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("total_chunks", sa.Integer),
        sa.Column("chunks_embedded", sa.Integer),
        sa.Column("total_lines", sa.Integer),
        sa.Column("total_chars", sa.BigInteger),
        sa.Column("total_pages", sa.Integer),
        sa.Column("page_starts", sa.Text),
        sa.Column("warnings", sa.Text),
        sa.Column("kind", sa.Text),
        sa.Column("language", sa.Text),
        sa.Column("next_text_id", sa.Text),
        sa.Column("next_text", sa.Text),
        sa.Column("path", sa.Text),
        sa.Column("original_created_at", UtcDateTime),
        sa.Column("original_updated_at", UtcDateTime),
        sa.Column("metadata", sa.Text),
        sa.Column("source_url", sa.Text),
        sa.Column("expected", sa.Text),
        sa.Column("revision", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("due_at", UtcDateTime),
        sa.Column("claim", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by_id", sa.Text, nullable=False),
        sa.Column("last_updated_by_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("entity_id", sa.Text),
        sa.Column("deleted_at", UtcDateTime),
    )
    _create_partial_index("files_by_blob", "files", ["organization_id", "blob_id"], "blob_id IS NOT NULL")
    _create_partial_index("files_by_deletion", "files", ["deleted_at"], "deleted_at IS NOT NULL")
    _create_partial_index(
        "files_by_name", "files", ["organization_id", "folder_id", "name"], "deleted_at IS NULL", unique=True
    )
    _create_partial_index("files_by_time", "files", ["organization_id", "created_at", "id"], "deleted_at IS NULL")
    _create_partial_index("files_by_work", "files", ["organization_id", "due_at"], "due_at IS NOT NULL")


def _create_folders() -> None:
    op.create_table(
        "folders",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("name_folded", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("instructions", sa.Text),
        sa.Column("metadata", sa.Text),
        sa.Column("embedder", sa.Text, nullable=False),
        sa.Column("chunk_size", sa.Integer, nullable=False),
        sa.Column("archive_id", sa.Text, nullable=False),
        sa.Column("file_count", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("revision", sa.BigInteger, nullable=False, server_default="1"),
        sa.Column("changed_at", UtcDateTime, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("created_by_id", sa.Text, nullable=False),
        sa.Column("last_updated_by_id", sa.Text, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("entity_id", sa.Text),
        sa.Column("deleted_at", UtcDateTime),
    )
    _create_partial_index("folders_by_deletion", "folders", ["deleted_at"], "deleted_at IS NOT NULL")
    _create_partial_index("folders_by_name", "folders", ["organization_id", "name"], "deleted_at IS NULL", unique=True)
    _create_partial_index("folders_by_time", "folders", ["organization_id", "created_at", "id"], "deleted_at IS NULL")


def _create_removals() -> None:
    op.create_table(
        "removals",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("details", sa.Text, nullable=False),
        sa.Column("due_at", UtcDateTime, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    )
    op.create_index("ix_removals_due_at", "removals", ["due_at"])


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


def _create_segments() -> None:
    op.create_table(
        "segments",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("file_id", sa.Text, primary_key=True),
        sa.Column("text_id", sa.Text, primary_key=True),
        sa.Column("first_line", sa.Integer, primary_key=True),
        sa.Column("line_count", sa.Integer, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )


def _create_upload_parts() -> None:
    op.create_table(
        "upload_parts",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("upload_id", sa.Text, primary_key=True),
        sa.Column("offset", sa.BigInteger, primary_key=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("blob_id", sa.Text, nullable=False),
    )
    op.create_index("upload_parts_by_blob", "upload_parts", ["organization_id", "blob_id"])


def _create_uploads() -> None:
    op.create_table(
        "uploads",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("header", sa.Text, nullable=False),
        sa.Column("received_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_uploads_expires_at", "uploads", ["expires_at"])


def _create_partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
