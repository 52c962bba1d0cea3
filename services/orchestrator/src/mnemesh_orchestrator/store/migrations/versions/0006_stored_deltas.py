"""Live events of background runs, and how often a run was claimed."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("claims", sa.Integer, nullable=False, server_default="0"))
    op.create_table(
        "run_deltas",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("after_sequence", sa.Integer, nullable=False),
        sa.Column("pieces", sa.LargeBinary, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("run_deltas")
    op.drop_column("runs", "claims")
