"""Providers that organizations register, and what they say of models."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "providers",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("providers_by_name", "providers", ["organization_id", "name"], unique=True)
    op.create_table(
        "model_overrides",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("handle", sa.Text, primary_key=True),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_table(
        "model_revisions",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("model_revisions")
    op.drop_table("model_overrides")
    op.drop_table("providers")
