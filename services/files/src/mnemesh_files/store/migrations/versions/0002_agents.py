"""Adds agents with their folders and windows, and what the lines of a text are."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("base_revision", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("max_files_open", sa.Integer(), nullable=True),
        sa.Column("view_char_limit", sa.Integer(), nullable=True),
        sa.Column("announced", sa.Boolean(), nullable=False),
        sa.Column("announce_at", UtcDateTime(), nullable=True),
        sa.Column("erased_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "id"),
    )
    op.create_index(
        "agents_by_announcement",
        "agents",
        ["announce_at"],
        unique=False,
        sqlite_where=sa.text("announce_at IS NOT NULL"),
        postgresql_where=sa.text("announce_at IS NOT NULL"),
    )
    op.create_table(
        "agent_folders",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("folder_id", sa.Text(), nullable=False),
        sa.Column("attached_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "agent_id", "folder_id"),
    )
    op.create_index("agent_folders_by_folder", "agent_folders", ["organization_id", "folder_id", "agent_id"])
    op.create_table(
        "agent_files",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("file_id", sa.Text(), nullable=False),
        sa.Column("folder_id", sa.Text(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("has_window", sa.Boolean(), nullable=False),
        sa.Column("start_line", sa.Integer(), nullable=True),
        sa.Column("end_line", sa.Integer(), nullable=True),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "agent_id", "file_id"),
    )
    op.create_index("agent_files_by_file", "agent_files", ["organization_id", "file_id"])
    op.add_column("files", sa.Column("kind", sa.Text(), nullable=True))
