"""Adds attachments of folders that open files."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agent_folders", sa.Column("opens_files", sa.Boolean(), nullable=False, server_default=sa.false()))
