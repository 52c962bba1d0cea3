"""Creates the table of the release whose built-in tools each organization has."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "furnishings",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("release", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("furnishings")
