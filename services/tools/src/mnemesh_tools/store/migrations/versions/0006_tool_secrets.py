"""Adds the environment variables of tools."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tools", sa.Column("secrets", sa.JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("tools", "secrets")
