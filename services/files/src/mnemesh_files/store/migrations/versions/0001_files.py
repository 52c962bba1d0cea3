"""Creates the tables of folders, files, contents, texts, passages, uploads and removals."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "blobs",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False),
        sa.Column("check_at", UtcDateTime(), nullable=True),
        sa.Column("removing_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "id"),
    )
    op.create_index(
        "blobs_by_check",
        "blobs",
        ["check_at"],
        unique=False,
        sqlite_where=sa.text("check_at IS NOT NULL"),
        postgresql_where=sa.text("check_at IS NOT NULL"),
    )
    op.create_index(
        "blobs_by_content",
        "blobs",
        ["organization_id", "sha256"],
        unique=False,
        sqlite_where=sa.text("removing_at IS NULL"),
        postgresql_where=sa.text("removing_at IS NULL"),
    )
    op.create_table(
        "file_passages",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("text_id", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("passage_id", sa.Text(), nullable=False),
        sa.Column("text_hash", sa.Text(), nullable=False),
        sa.Column("embedded", sa.Boolean(), nullable=False),
        sa.Column("start_line", sa.Integer(), nullable=False),
        sa.Column("end_line", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "file_id", "text_id", "position"),
    )
    op.create_index("file_passages_by_passage", "file_passages", ["organization_id", "passage_id"], unique=False)
    op.create_table(
        "files",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("folder_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("names_folded", sa.Text(), nullable=False),
        sa.Column("original_name", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("media_type_given", sa.Boolean(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("blob_id", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("text_id", sa.Text(), nullable=True),
        sa.Column("searchable", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("total_chunks", sa.Integer(), nullable=True),
        sa.Column("chunks_embedded", sa.Integer(), nullable=True),
        sa.Column("total_lines", sa.Integer(), nullable=True),
        sa.Column("total_chars", sa.BigInteger(), nullable=True),
        sa.Column("total_pages", sa.Integer(), nullable=True),
        sa.Column("page_starts", sa.Text(), nullable=True),
        sa.Column("warnings", sa.Text(), nullable=True),
        sa.Column("language", sa.Text(), nullable=True),
        sa.Column("next_text_id", sa.Text(), nullable=True),
        sa.Column("next_text", sa.Text(), nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("original_created_at", UtcDateTime(), nullable=True),
        sa.Column("original_updated_at", UtcDateTime(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("source_url", sa.Text(), nullable=True),
        sa.Column("expected", sa.Text(), nullable=True),
        sa.Column("revision", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=True),
        sa.Column("claim", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
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
    op.create_index(
        "files_by_blob",
        "files",
        ["organization_id", "blob_id"],
        unique=False,
        sqlite_where=sa.text("blob_id IS NOT NULL"),
        postgresql_where=sa.text("blob_id IS NOT NULL"),
    )
    op.create_index(
        "files_by_deletion",
        "files",
        ["deleted_at"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NOT NULL"),
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.create_index(
        "files_by_name",
        "files",
        ["organization_id", "folder_id", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "files_by_time",
        "files",
        ["organization_id", "created_at", "id"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "files_by_work",
        "files",
        ["organization_id", "due_at"],
        unique=False,
        sqlite_where=sa.text("due_at IS NOT NULL"),
        postgresql_where=sa.text("due_at IS NOT NULL"),
    )
    op.create_table(
        "folders",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("name_folded", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("embedder", sa.Text(), nullable=False),
        sa.Column("chunk_size", sa.Integer(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("file_count", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
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
    op.create_index(
        "folders_by_deletion",
        "folders",
        ["deleted_at"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NOT NULL"),
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.create_index(
        "folders_by_name",
        "folders",
        ["organization_id", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "folders_by_time",
        "folders",
        ["organization_id", "created_at", "id"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "removals",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "kind", "id"),
    )
    op.create_index(op.f("ix_removals_due_at"), "removals", ["due_at"], unique=False)
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
    op.create_table(
        "segments",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("text_id", sa.Text(), nullable=False),
        sa.Column("first_line", sa.Integer(), nullable=False),
        sa.Column("line_count", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "file_id", "text_id", "first_line"),
    )
    op.create_table(
        "upload_parts",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("blob_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "upload_id", "offset"),
    )
    op.create_index("upload_parts_by_blob", "upload_parts", ["organization_id", "blob_id"], unique=False)
    op.create_table(
        "uploads",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("header", sa.Text(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "id"),
    )
    op.create_index(op.f("ix_uploads_expires_at"), "uploads", ["expires_at"], unique=False)
