"""Lets agents share their attached blocks."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("core_memories", sa.Column("link_id", sa.Text))
    op.create_index(
        "core_memories_by_link",
        "core_memories",
        ["organization_id", "link_id"],
        sqlite_where=sa.text("link_id IS NOT NULL"),
        postgresql_where=sa.text("link_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("core_memories_by_link", "core_memories")
    op.drop_column("core_memories", "link_id")
