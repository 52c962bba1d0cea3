"""Adds the locks of the packages of tools."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tools", sa.Column("package_lock", sa.Text))


def downgrade() -> None:
    op.drop_column("tools", "package_lock")
