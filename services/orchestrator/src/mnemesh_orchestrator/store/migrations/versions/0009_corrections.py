"""How far off the estimates of an agent's requests are."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("agents", sa.Column("corrections", sa.LargeBinary))


def downgrade() -> None:
    op.drop_column("agents", "corrections")
