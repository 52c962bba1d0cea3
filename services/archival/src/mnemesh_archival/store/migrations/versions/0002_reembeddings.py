"""Adds changes of embedders and the passages that they have copied."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reembeddings",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("embedder", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("claimed_until", UtcDateTime(), nullable=False),
        sa.Column("writers_wait_until", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "archive_id"),
    )
    op.add_column("archives", sa.Column("generation", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("passages", sa.Column("generation", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("passages", sa.Column("changes", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index("passages_by_generation", "passages", ["organization_id", "archive_id", "generation"], unique=False)
    op.create_index("passages_by_deletion", "passages", ["deleted_at"], unique=False)


def downgrade() -> None:
    op.drop_index("passages_by_deletion", table_name="passages")
    op.drop_index("passages_by_generation", table_name="passages")
    op.drop_column("passages", "changes")
    op.drop_column("passages", "generation")
    op.drop_column("archives", "generation")
    op.drop_table("reembeddings")
