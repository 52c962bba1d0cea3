"""The names that clients give to conversations."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("conversations", sa.Column("client_key", sa.Text))
    op.create_index("conversations_by_client_key", "conversations", ["agent_id", "client_key"], unique=True)


def downgrade() -> None:
    op.drop_index("conversations_by_client_key", "conversations")
    op.drop_column("conversations", "client_key")
