"""The time at which a pending approval is denied."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("approvals", sa.Column("expires_at", UtcDateTime))


def downgrade() -> None:
    op.drop_column("approvals", "expires_at")
