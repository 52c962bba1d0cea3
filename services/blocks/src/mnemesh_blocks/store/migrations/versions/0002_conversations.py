"""Lets conversations hold blocks."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("core_memories", sa.Column("conversation_of", sa.Text))
    op.create_index(
        "core_memories_of_conversations",
        "core_memories",
        ["organization_id", "conversation_of"],
        sqlite_where=sa.text("conversation_of IS NOT NULL"),
        postgresql_where=sa.text("conversation_of IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("core_memories_of_conversations", "core_memories")
    op.drop_column("core_memories", "conversation_of")
