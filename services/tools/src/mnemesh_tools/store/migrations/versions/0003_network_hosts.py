"""Adds the hosts that a tool may connect to."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tools", sa.Column("network_hosts", sa.JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    op.drop_column("tools", "network_hosts")
