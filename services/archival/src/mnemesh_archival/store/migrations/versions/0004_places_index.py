"""Adds an index on positions that covers the columns that a search reads of neighbours."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = ["organization_id", "archive_id", "position", "state", "point_id", "strand", "created_at"]


def upgrade() -> None:
    op.create_index("passages_by_place", "passages", COLUMNS, unique=False)
    op.drop_index("passages_by_position", table_name="passages")


def downgrade() -> None:
    op.create_index("passages_by_position", "passages", COLUMNS[:3], unique=False)
    op.drop_index("passages_by_place", table_name="passages")
