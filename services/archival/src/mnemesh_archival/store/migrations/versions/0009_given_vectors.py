"""Adds the vectors that come with passages: the index is rebuilt from them without embedding the texts again."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("passages", sa.Column("given_embedder", sa.Text()))
    op.add_column("passages", sa.Column("given_vector", sa.LargeBinary()))


def downgrade() -> None:
    op.drop_column("passages", "given_vector")
    op.drop_column("passages", "given_embedder")
