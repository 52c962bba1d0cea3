"""Takeovers of runs without progress, and epochs that recall knows and this database does not."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("progress", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("stalled_claims", sa.Integer, nullable=False, server_default="0"))
    op.add_column("conversations", sa.Column("epoch_lead", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("conversations", "epoch_lead")
    op.drop_column("runs", "stalled_claims")
    op.drop_column("runs", "progress")
